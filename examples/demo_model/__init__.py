"""The demo model: a small chat model trained with Levanter, exported, and served."""
