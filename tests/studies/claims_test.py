"""The commands of claims.toml name configs, keys, suites and protocols that exist."""

import re

import pytest

from jaxssl.evaluation import suite
from jaxssl.evaluation.selection import select_protocols
from jaxssl.studies.claims import read_unstudied_claims
from jaxssl.training import config as config_lib

pytestmark = pytest.mark.fast

COMMANDS = sorted({command for _, command in read_unstudied_claims()})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_that_test_claims_name_existing_configs_suites_and_protocols(command):
    flags = dict(re.findall(r"--(\S+?)[= ](\S+)", command))
    overrides = [(k.removeprefix("config."), v) for k, v in flags.items() if "config." in k]
    if command.startswith("jaxssl train"):
        config_lib.load(flags["config"], overrides)
    elif "suite" in flags:
        assert suite.read(flags["suite"]).datasets
    else:
        select_protocols(flags["protocols"].split(","))


def test_commands_that_test_claims_change_no_setting_of_small_crops():
    """Crops without their scale would be another augmentation than the paper's."""
    assert not [command for command in COMMANDS if "crops." in command]
