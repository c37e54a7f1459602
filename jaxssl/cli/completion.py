"""Print a script that completes command lines in bash, zsh or fish.

usage: jaxssl completion bash|zsh|fish

It completes subcommands, flags, configs and their keys, and the names of losses, protocols, studies
and other components. The line for ~/.bashrc, ~/.zshrc (below compinit) or
~/.config/fish/config.fish is

    eval "$(jaxssl completion bash)"
    eval "$(jaxssl completion zsh)"
    jaxssl completion fish | source
"""

import ast
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from jaxssl import cli, components
from jaxssl.errors import UserError, closest_key, suggest

SHELLS = ("bash", "zsh", "fish")
# Valid values of the flags that have the same values in all commands.
CHOICES = {
    "kinds": ("raw", "untrained", "pretrained"),
    "layer": ("backbone", "projector"),
    "step": ("best", "last"),
    "to": ("safetensors", "torch", "stablehlo", "timm"),
}
# Arguments that each function that makes a factory from a loss adds to the loss's own.
ADDED: dict[str, dict[str, Any]] = {
    "stateless": {"learn": ()},
    "with_center": {"center_momentum": 0.9},
}

FLAGS = flags.FlagValues()
POSITIONAL = "shell"
SHELL = flags.DEFINE_enum("shell", None, list(SHELLS), "Same as bash, zsh or fish.", FLAGS)


def main() -> None:
    """Print the script that completes `jaxssl` commands in a shell."""
    if SHELL.value is None:
        raise UserError(f"name the shell: jaxssl completion {'|'.join(SHELLS)}")
    print(script(SHELL.value), end="")


def script(shell: str) -> str:
    """Return the script that completes `jaxssl` commands in a shell.

    It passes the line up to the cursor. bash replaces only the text after the last character at
    which it breaks words, such as "=" and ":".
    """
    return Path(__file__).with_name("scripts").joinpath(f"completion.{shell}").read_text("utf-8")


def complete(line: str) -> list[str]:
    """Return the words that may stand at the end of a command line, without importing JAX.

    Args:
        line: the command line up to the cursor. Its last word may be empty.
    """
    _, *words, current = re.split(r"\s+", line.lstrip())
    command = cli.find_command(words)
    if command:
        options = _arguments(command, words[len(command.split()) :], current)
    else:
        start = "".join(f"{word} " for word in words)
        names = [name.removeprefix(start) for name in cli.COMMANDS if name.startswith(start)]
        options = [*(name.split()[0] for name in names), "--help", "--version"]
    return sorted({option for option in options if option.startswith(current)})


def _arguments(command: str, words: Sequence[str], current: str) -> Iterable[str]:
    """Return the completions of the current word, after the words of a command."""
    module, last = cli.load(command), words[-1] if words else ""
    with_value = {f"--{name}" for name in module.FLAGS if not module.FLAGS[name].boolean}
    first_key = cli.COMMANDS[command].keys
    if last in with_value or (last.startswith(cli.PREFIX) and "=" not in last):
        return _list_values(command, last, words, current)
    if not current.startswith("-"):
        return _list_values(command, f"--{getattr(module, 'POSITIONAL', '')}", words, current)
    flag, equals, value = current.partition("=")
    if equals:
        return [f"{flag}={option}" for option in _list_values(command, flag, words, value)]
    if current.startswith(cli.PREFIX) and first_key is not None:
        keys = (key for key in config_keys(words) if key.startswith(first_key))
        return _next_parts(current, (f"{cli.PREFIX}{key}=" for key in keys))
    names = [f"--{name}" for name in module.FLAGS]
    names += ["--help", *([] if first_key is None else [cli.PREFIX])]
    return [f"{name}=" if name in with_value else name for name in names]


def _list_values(command: str, flag: str, words: Sequence[str], text: str) -> list[str]:
    """Return the completions of a flag's value, which may be a comma-separated list."""
    earlier = text[: text.rfind(",") + 1]
    return [earlier + name for name in _values(command, flag.removeprefix("--"), words)]


def _next_parts(start: str, keys: Iterable[str]) -> Iterable[str]:
    """Cut keys behind the first dot after a start, so that groups of keys are completed first."""
    return {key[: key.find(".", len(start)) + 1] or key for key in keys if key.startswith(start)}


def _values(command: str, flag: str, words: Sequence[str]) -> Iterable[str]:
    """Return the names that a flag, a config key or a positional argument may have."""
    module = cli.load(command)
    match flag:
        case "config":
            return components.configs()
        case "suite":
            return components.packaged("suite")
        case "grid":
            return [f"{key}=" for key in config_keys(words)]
        case "protocols" | "config.eval.protocols":
            names = components.names("protocol")
            return [*names, *(f"{name}:{p}" for name in names for p in _presets("protocol", name))]
        case "name" if command == "study":
            return (*components.names("study"), "claims")
        case "name" | "dataset" | "config.data.name":
            texts = [path.read_text(encoding="utf-8") for path in components.packaged().values()]
            used = re.findall(r'"data": {"name": "(\w+)"', "".join(texts))
            return {*used, *components.names("data"), *components.names("toy")}
        case "names":
            groups = module.GROUPS
            if words:
                return components.names(groups[words[0]]) if words[0] in groups else ()
            return (*module.FILES, *groups)
        case key if key.startswith("config."):
            return config_keys(words).get(key.removeprefix("config."), ())
    if flag in CHOICES or flag not in module.FLAGS:
        return CHOICES.get(flag, ())
    return getattr(module.FLAGS[flag].parser, "enum_values", ())


def config_keys(words: Sequence[str] = ()) -> dict[str, Iterable[str]]:
    """Return all config keys, and the values of each that are known by name.

    Args:
        words: arguments of a command, which may name a packaged config and components.
    """
    given = dict(re.findall(r"--(\S+?)[= ]([^-\s]\S*)", " ".join(words)))
    base = components.load_file(components.CONFIGS / "base.py", "config file")
    file, _, variant = given.get("config", "digits").partition(":")
    path = components.packaged().get(file)
    module = components.load_file(path, "config file") if path else base
    if variant not in getattr(module, "VARIANTS", ("",)):
        module, variant = base, ""
    config = module.get_config(variant) if variant else module.get_config()
    comments, keys = components.key_comments(), {}
    for group, value in config.to_dict().items():
        nested = isinstance(value, dict)
        settings = {f"{group}.{k}": v for k, v in value.items()} if nested else {group: value}
        keys |= {key: _choices(v, comments.get(key, "")) for key, v in settings.items()}
        if group in base.COMPONENTS:
            name, names = given.get(f"config.{group}.name", value["name"]), components.names(group)
            keys[f"{group}.name"] = (*names, *_choices("", comments[group]))
            if name in names:
                keys |= _component_keys(group, name)
    return keys


def _component_keys(group: str, name: str) -> Mapping[str, Iterable[str]]:
    """Return the config keys of the arguments and presets of a component, with known values."""
    groups = ("augment", "second_view", "crops") if group == "augment" else (group,)
    arguments, presets = _arguments_of(group, name), _presets(group, name)
    keys = {f"{g}.{k}": _choices(v, "") for g in groups for k, v in arguments.items()}
    return keys | ({f"{group}.preset": presets} if presets else {})


def describe_unknown_flag(command: str, name: str, defined: Iterable[str]) -> str:
    """Return the message for an unknown flag, which may be a config key without "--config."."""
    start = cli.COMMANDS[command].keys
    if start is not None and not difflib.get_close_matches(name, defined, n=1):
        key = closest_key(name, (key for key in config_keys() if key.startswith(start)))
        if key:
            return f"flag --{name} is unknown; did you mean '{cli.PREFIX}{key}'?"
    return f"flag --{name} is unknown{suggest(f'--{name}', [f'--{flag}' for flag in defined])}"


def _choices(value: object, comment: str) -> Sequence[str]:
    """Return valid values of a config key: True and False, or words quoted in the key's comment."""
    if isinstance(value, bool):
        return ("True", "False")
    return re.findall(r'"(\w+)"', comment) if isinstance(value, str) else ()


def _arguments_of(group: str, name: str) -> dict[str, Any]:
    """Return the arguments of a component with their defaults, parsed from the component's file."""
    definitions = _definitions(group, name)
    factory, added = definitions[components.GROUPS[group].factory], {}
    if isinstance(factory, ast.Call):  # made from a loss: objective = stateless(foo_loss, ...)
        maker = ast.unparse(factory.func)
        keywords = {str(keyword.arg): keyword.value for keyword in factory.keywords}
        if maker == "factory":
            added = {key: getattr(value, "value", None) for key, value in keywords.items()}
        elif "extra" in keywords:
            added = ADDED[maker] | ast.literal_eval(keywords["extra"])
        else:
            added = ADDED[maker]
        factory = definitions[ast.unparse(factory.args[0])]
        for decorator in factory.decorator_list:  # a factory with the decorator @wraps(foo_loss)
            factory = definitions[ast.unparse(decorator.args[0])]
        positional = [a.arg for a in factory.args.args[1:] if "Array" not in ast.unparse(a)]
        added = dict.fromkeys(positional) | added
    pairs = zip(factory.args.kwonlyargs, factory.args.kw_defaults, strict=True)
    return {arg.arg: getattr(default, "value", None) for arg, default in pairs} | added


def _presets(group: str, name: str) -> list[str]:
    """Return the names of a component's presets, parsed from the component's file."""
    keys = getattr(_definitions(group, name).get("PRESETS"), "keys", ())
    return [str(key.value) for key in keys if isinstance(key, ast.Constant)]


def _definitions(group: str, name: str) -> dict[str, Any]:
    """Return the functions, and the values of assignments, at the top of a component's file."""
    definitions = {}
    for node in ast.parse(components.file(group, name).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            definitions[ast.unparse(target)] = node.value
    return definitions
