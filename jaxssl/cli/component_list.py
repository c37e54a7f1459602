"""List the configs and components of the package, or the settings of a component.

usage: jaxssl list [TOPIC [NAME]]

TOPIC is configs, suites, losses, networks, heads, methods (training schemes), augmentations,
protocols, loggers or studies. NAME is a component: jaxssl list losses nt_xent prints its settings
and presets.
A config with variants is named with one of them: --config auc_cl:cifar10. The settings of a config
are printed by jaxssl train --config NAME --keys.
"""

from absl import flags

from jaxssl import components
from jaxssl.errors import UserError, suggest

FLAGS = flags.FlagValues()
POSITIONAL = "names"
NAMES = flags.DEFINE_list("names", [], "Same as TOPIC,NAME; default: all topics.", FLAGS)
FILES = {"configs": "config", "suites": "suite"}  # sort of packaged file by topic
# Groups of components in `jaxssl.components` by topic.
GROUPS = {
    "losses": "loss",
    "networks": "net",
    "heads": "head",
    "methods": "method",
    "augmentations": "augment",
    "protocols": "protocol",
    "loggers": "log",
    "studies": "study",
}


def main() -> None:
    """Print configs and components with a line about each, or the settings of a component."""
    topics = (*FILES, *GROUPS)
    chosen, *names = NAMES.value or [""]
    if chosen not in ("", *topics):
        raise UserError(f"topic {chosen!r} is unknown{suggest(chosen, topics)}")
    if names:
        if len(names) > 1 or chosen not in GROUPS:
            raise UserError(
                "expected jaxssl list TOPIC NAME with one component; jaxssl train --config NAME "
                "--keys prints the settings of a config"
            )
        print(*_settings(GROUPS[chosen], names[0]), sep="\n")
        return
    for topic in [chosen] if chosen else topics:
        if not chosen:
            print(topic)
        entries = _entries(topic)
        width = max(map(len, entries))
        for name, summary in entries.items():
            print(f"  {name:{width}}  {summary}")


def _settings(group: str, name: str) -> list[str]:
    """Return lines of text with the settings and the presets of a component."""
    from jaxssl.training import config
    from jaxssl.training.config import help as config_help

    module = components.module(group, name)
    settings = config_help.component_settings(group, name) if group in config.GROUPS else []
    lines = config_help.table(settings)
    for preset, values in getattr(module, "PRESETS", {}).items():
        lines.append(f"preset {preset}: {', '.join(f'{k}={v}' for k, v in values.items())}")
    return lines or [f"{name} has no settings"]


def _entries(topic: str) -> dict[str, str]:
    """Return the names of a topic, such as "losses", with the first line of each docstring."""
    if topic in GROUPS:
        group = GROUPS[topic]
        names = components.names(group)
        return {name: components.summary(components.file(group, name)) for name in names}
    entries = {}
    for name, path in components.packaged(FILES[topic]).items():
        variants = components.variants(path)
        entries[name] = components.summary(path)
        entries |= {f"{name}:{variant}": line for variant, line in variants.items()}
    return entries
