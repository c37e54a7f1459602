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
import re
from collections.abc import Iterable, Sequence
from typing import Any

from absl import flags

from jaxssl import cli, components
from jaxssl.errors import UserError

# The scripts pass the line up to the cursor. bash replaces only the text after the last character
# at which it breaks words, such as "=" and ":".
SCRIPTS = {
    "bash": """\
_jaxssl() {
    local IFS=$'\\n' line="${COMP_LINE:0:COMP_POINT}"
    local word="${line##*[[:space:]]}"
    COMPREPLY=($("$1" --complete "$line" 2>/dev/null))
    COMPREPLY=("${COMPREPLY[@]#"${word%"${word##*[$COMP_WORDBREAKS]}"}"}")
    [[ "${COMPREPLY-}" == *[=.] ]] && compopt -o nospace 2>/dev/null
}
complete -o default -F _jaxssl jaxssl
""",
    "zsh": """\
_jaxssl() {
    local -a found
    found=(${(f)"$($words[1] --complete "$words[1,CURRENT-1] $PREFIX" 2>/dev/null)"})
    if (( $#found )); then
        compadd -S '' -- ${(M)found:#*[=.]}
        compadd -- ${found:#*[=.]}
    else
        compset -P '*='
        _files
    fi
}
compdef _jaxssl jaxssl
""",
    "fish": """\
function __jaxssl_complete
    jaxssl --complete (commandline --cut-at-cursor --current-process | string collect) 2>/dev/null
end
complete --command jaxssl --arguments '(__jaxssl_complete)'
""",
}
# Valid values of the flags that have the same values in all commands.
CHOICES = {
    "kinds": ("raw", "untrained", "pretrained"),
    "layer": ("backbone", "projector"),
    "step": ("best", "last"),
    "to": ("safetensors", "torch", "stablehlo", "timm"),
}
NOTHING = ast.Dict(keys=[], values=[])
# Arguments that a factory has beside those of the loss that it is made from.
FURTHER: dict[str, dict[str, Any]] = {
    "stateless": {"learn": ()},
    "with_center": {"center_momentum": 0.9},
}

FLAGS = flags.FlagValues()
POSITIONAL = "shell"
SHELL = flags.DEFINE_enum("shell", None, list(SCRIPTS), "Same as bash, zsh or fish.", FLAGS)


def main() -> None:
    """Print the script that completes `jaxssl` commands in a shell."""
    if SHELL.value is None:
        raise UserError(f"name the shell: jaxssl completion {'|'.join(SCRIPTS)}")
    print(SCRIPTS[SHELL.value], end="")


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
    """Return what may stand in place of the current word, after the words of a command."""
    module, last = cli.load(command), words[-1] if words else ""
    with_value = {f"--{name}" for name in module.FLAGS if not module.FLAGS[name].boolean}
    first = cli.COMMANDS[command].keys
    flag, equals, value = current.partition("=")
    start = flag + equals
    if last in with_value or (last.startswith(cli.PREFIX) and "=" not in last):
        flag, start, value = last, "", current
    elif current.startswith(cli.PREFIX) and first is not None and not equals:
        keys = (f"{cli.PREFIX}{key}=" for key in config_keys(words) if key.startswith(first))
        return _next_parts(current, keys)
    elif current.startswith("-") and not equals:
        names = [f"--{name}" for name in module.FLAGS]
        names += ["--help", *([] if first is None else [cli.PREFIX])]
        return [f"{name}=" if name in with_value else name for name in names]
    elif not current.startswith("-"):
        flag, start, value = f"--{getattr(module, 'POSITIONAL', '')}", "", current
    start += value[: value.rfind(",") + 1]  # keep the earlier values of a comma-separated list
    return [start + name for name in _values(command, flag[2:], words)]


def _next_parts(start: str, keys: Iterable[str]) -> Iterable[str]:
    """Cut keys behind the next dot, so that the groups of a config are completed first."""
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
            groups = module.KINDS
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
    loaded = components.load_file(path, "config file") if path else base
    if variant not in getattr(loaded, "VARIANTS", ("",)):
        loaded, variant = base, ""
    comments, keys = components.key_comments(), {}
    for group, node in loaded.get_config(*filter(None, [variant])).to_dict().items():
        nested = isinstance(node, dict)
        settings = {f"{group}.{k}": v for k, v in node.items()} if nested else {group: node}
        keys |= {key: _choices(v, comments.get(key, "")) for key, v in settings.items()}
        if group in base.COMPONENTS:
            name, names = given.get(f"config.{group}.name", node["name"]), components.names(group)
            keys[f"{group}.name"] = (*names, *_choices("", comments[group]))
            if name in names:
                arguments = _arguments_of(group, name)
                groups = (group, "second_view", "crops") if group == "augment" else (group,)
                keys |= {f"{g}.{k}": _choices(v, "") for g in groups for k, v in arguments.items()}
                if presets := _presets(group, name):
                    keys[f"{group}.preset"] = presets
    return keys


def _choices(value: object, comment: str) -> Sequence[str]:
    """Return valid values of a config key: True and False, or words quoted in the key's comment."""
    if isinstance(value, bool):
        return ("True", "False")
    return re.findall(r'"(\w+)"', comment) if isinstance(value, str) else ()


def _arguments_of(group: str, name: str) -> dict[str, Any]:
    """Return the arguments of a component with their defaults, parsed from the component's file."""
    definitions = _definitions(group, name)
    factory, further = definitions[components.GROUPS[group].factory], {}
    if isinstance(factory, ast.Call):  # made from a loss: objective = stateless(foo_loss, ...)
        made_by, given = ast.unparse(factory.func), {str(k.arg): k.value for k in factory.keywords}
        if made_by == "factory":
            further = {key: getattr(value, "value", None) for key, value in given.items()}
        else:
            further = FURTHER[made_by] | ast.literal_eval(given.get("extra", NOTHING))
        factory = definitions[ast.unparse(factory.args[0])]
        for decorator in factory.decorator_list:  # a factory with the decorator @wraps(foo_loss)
            factory = definitions[ast.unparse(decorator.args[0])]
        positional = [a.arg for a in factory.args.args[1:] if "Array" not in ast.unparse(a)]
        further = dict.fromkeys(positional) | further
    pairs = zip(factory.args.kwonlyargs, factory.args.kw_defaults, strict=True)
    return {arg.arg: getattr(default, "value", None) for arg, default in pairs} | further


def _presets(group: str, name: str) -> list[object]:
    """Return the names of a component's presets, parsed from the component's file."""
    keys = getattr(_definitions(group, name).get("PRESETS"), "keys", ())
    return [key.value for key in keys if isinstance(key, ast.Constant)]


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
