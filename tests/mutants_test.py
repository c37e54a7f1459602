"""The lists of defects in tests/mutants/ fit the package and its tests."""

import mutants
import pytest

ALL = mutants.load()


@pytest.mark.parametrize("name", sorted({name.split("/")[0] for name in ALL}))
def test_mutants_of_a_list_apply_and_their_tests_exist(name):
    for mutant in mutants.select(ALL, [f"{name}/*"]).values():
        assert mutants.mutate(mutant) != (mutants.ROOT / mutant.file).read_text()
        mutants.check_tests(mutant)


def example(**changes):
    return next(iter(ALL.values()))._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"old": "no such text"}, "stale: `old` must occur once in .*, got 0 times"),
        ({"old": "e"}, r"got \d\d+ times"),
        ({"new": example().old}, "changes nothing"),
        ({"new": "("}, "is not valid Python"),
        ({"tests": []}, "'' is not a file of tests"),
        ({"tests": ["tests/tiny.py"]}, "'tests/tiny.py' is not a file of tests"),
        ({"tests": ["tests/docs_test.py::test_none"]}, r"has no function \['test_none'\]"),
        ({"tests": ["tests/docs_test.py -k 'not q1w2e3'"]}, r"is named \['q1w2e3'\]"),
    ],
)
def test_stale_mutant_is_refused(changes, message):
    if "q1w2e3" in message:  # the word must not occur in a module that tests share
        assert "q1w2e3" not in (mutants.ROOT / "tests/mutants.py").read_text()
    with pytest.raises(mutants.StaleError, match=message):
        mutants.mutate(example(**changes))
        mutants.check_tests(example(**changes))


def test_globs_select_by_list_and_by_name():
    name = next(iter(ALL))
    folder, short = name.split("/")
    assert name in mutants.select(ALL, [folder])
    assert list(mutants.select(ALL, [short])) == [name]
    with pytest.raises(mutants.StaleError, match="no mutant matches 'nothing'"):
        mutants.select(ALL, ["nothing"])
