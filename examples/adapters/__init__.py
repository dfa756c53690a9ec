"""Fine-tune the demo model with Levanter's `lora_lm`, and serve the adapters beside their base."""
