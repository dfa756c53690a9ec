"""The text side of speech: the tokens of Whisper that are not text, and the languages that they name."""
