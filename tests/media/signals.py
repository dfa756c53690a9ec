"""Twelve signals of 16-bit samples at 16 kHz, as hard for features as they come."""

import numpy as np

RATE = 16_000


def signals() -> dict[str, np.ndarray]:
    """Return the signals by name; they are the same on every machine."""
    random = np.random.default_rng(37)
    time_s = np.arange(RATE * 11) / RATE
    noise = random.normal(0, 3000, RATE * 31)
    sweep = 12000 * np.sin(2 * np.pi * (50 + 350 * time_s) * time_s)
    voice = sum(9000 / k * np.sin(2 * np.pi * 120 * k * time_s) for k in range(1, 30)) * np.hanning(len(time_s))
    values = {
        "silence": np.zeros(RATE),
        "constant": np.full(RATE * 2, 1234),
        "one-sample": np.array([9000]),
        "tenth-of-a-second": noise[: RATE // 10],
        "noise": noise,
        "quiet-noise": noise[: RATE * 3] / 2000,
        "sweep": sweep,
        "clipped": np.clip(sweep * 5, -32768, 32767),
        "voice": voice,
        "voice-in-noise": voice + noise[: len(voice)] / 10,
        "impulses": np.where(np.arange(RATE * 10 + 77) % 4001 == 0, 30000, 0),
        "loud-then-quiet": np.concatenate([noise[: RATE * 5] * 3, noise[: RATE * 5] / 300]),
    }
    return {name: np.clip(np.round(value), -32768, 32767).astype(np.int16) for name, value in values.items()}
