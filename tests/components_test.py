"""Components are found by name and can be built with their defaults."""

import inspect
from typing import Any

import pytest

from jaxssl import components
from jaxssl.errors import UserError

pytestmark = pytest.mark.fast

ALL = [(g, name) for g in components.GROUPS if g != "kind" for name in components.names(g)]


@pytest.mark.parametrize(("group", "name"), ALL)
def test_every_component_has_a_factory_with_keyword_arguments(group, name):
    factory: Any = components.factory(group, name)
    if group == "protocol":
        factory = factory.run
    kinds = [p.kind for p in inspect.signature(factory).parameters.values()]
    if group in ("net", "text", "head", "predictor", "loss", "augment"):
        assert set(kinds) <= {inspect.Parameter.KEYWORD_ONLY}
    assert callable(factory)


@pytest.mark.parametrize("group", ["net", "head", "predictor", "augment", "loss"])
def test_components_are_built_with_their_defaults(group):
    built = 0
    for name in components.names(group):
        factory = components.factory(group, name)
        parameters = inspect.signature(factory).parameters.values()
        if all(p.default is not inspect.Parameter.empty for p in parameters):
            assert factory() is not None
            built += 1
    assert built


def test_new_file_is_a_component_unless_its_name_begins_with_an_underscore(tmp_path, monkeypatch):
    import jaxssl.losses

    (tmp_path / "losses").mkdir()
    for name in ("mine", "_mine"):
        (tmp_path / "losses" / f"{name}.py").write_text("objective = dict")
    (tmp_path / "losses" / "tools.py").write_text("def objectives(): pass")
    monkeypatch.setattr(components, "PACKAGE", tmp_path)
    monkeypatch.setattr(jaxssl.losses, "__path__", [str(tmp_path / "losses")])
    components.names.cache_clear()
    try:
        assert components.names("loss") == ("mine",)
        assert components.factory("loss", "mine") is dict
        for private in ("_mine", "tools", "pairs"):
            with pytest.raises(UserError, match=f"loss.name={private!r} is unknown"):
                components.module("loss", private)
    finally:
        components.names.cache_clear()
