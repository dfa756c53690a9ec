"""Audio files of clients to samples and features."""
