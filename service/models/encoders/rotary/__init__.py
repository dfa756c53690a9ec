"""Encoders with rotary positions: Llama-like decoders, EmbeddingGemma, ModernBERT."""
