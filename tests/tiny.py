"""Overrides for the smallest complete run, which several tests and scripts start from."""

from pathlib import Path

DIGITS = Path(__file__).parents[1] / "configs" / "digits.py"
TINY = {"batch_size": "16", "log_every": "4", "augment.size": "8", "eval.protocols": "()"}
TINY |= {"net.widths": "(4, 8)", "net.strides": "(2, 2)"}
TINY |= {"head.proj_hidden_dim": "8", "head.proj_output_dim": "6"}
# Settings of a run of less than an epoch, with a checkpoint in the middle.
STEPS, SAVED = 12, 7
SETTINGS = {**TINY, "total_steps": str(STEPS), "schedule.warmup_epochs": "0.05"}
SETTINGS |= {"checkpoint.every": str(SAVED / (1297 // 16)), "eval.every": "100"}


def short(steps: int, **changes: str) -> dict[str, str]:
    """Return `TINY` for a run of some steps without a warm-up, with the protocols of its config."""
    settings = {key: value for key, value in TINY.items() if key != "eval.protocols"}
    return {**settings, "total_steps": str(steps), "schedule.warmup_epochs": "0", **changes}


def flags(settings: dict[str, str]) -> list[str]:
    """Return settings as flags of a command."""
    return [f"--config.{key}={value}" for key, value in settings.items()]
