"""`jaxssl train --profile` traces its steps and changes nothing else."""

import gzip
import json
from contextlib import closing

import jax
import pytest
from jax import numpy as jnp
from workdir_cases import assert_same_run

from jaxssl.errors import UserError
from jaxssl.evaluation import pretrain
from jaxssl.training import loop, profiling
from jaxssl.training.workdir import run_record


def test_profile_traces_only_given_steps_and_changes_no_result(tiny, whole, tmp_path, monkeypatch):
    calls, make = [], loop.make_programs

    def make_programs(*arguments, **options):
        programs = make(*arguments, **options)

        def steps(state, data, indices, n):
            calls.append((int(state.step), n))
            return programs.steps(state, data, indices, n)

        return programs._replace(steps=steps)

    with monkeypatch.context() as patch:
        patch.setattr(jax.profiler, "start_trace", lambda folder, **_: calls.append(folder))
        patch.setattr(jax.profiler, "stop_trace", lambda: calls.append("end"))
        patch.setattr(loop, "make_programs", make_programs)
        pretrain.train(tiny(), tmp_path, profile=range(5, 8))
    start, end = calls.index(tmp_path / "profile"), calls.index("end")
    traced = [step for first, n in calls[start + 1 : end] for step in range(first, first + n)]
    others = [*calls[:start], *calls[end + 1 :]]
    rest = [step for first, n in others for step in range(first, first + n)]
    assert traced == [5, 6, 7] and rest == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    assert_same_run(tmp_path, whole)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "--profile must be FIRST:END with FIRST < END, such as 100:110, got '5'"),
        ("", "must be FIRST:END with FIRST < END"),
        pytest.param("0:" + 5000 * "9", "must be FIRST:END with FIRST < END", id="long"),
        ("7:7", "must be FIRST:END with FIRST < END"),
        ("10:13", "--profile 10:13: the run ends at step 12"),
        ("5:12", r"--profile 5:12: the run in .* resumes at step 12; name steps from 12 on, or"),
    ],
)
def test_profile_of_steps_that_the_run_does_not_take_is_refused(tiny, whole, text, message):
    with pytest.raises(UserError, match=message):
        pretrain.train(tiny(), whole, profile=profiling.parse(text))


@pytest.mark.parametrize("last", [pytest.param(last, marks=pytest.mark.long) for last in (3, 4, 5)])
def test_profile_has_a_perfetto_trace_even_if_the_run_is_interrupted(tmp_path, last):
    x = jnp.zeros(2)
    with closing(profiling.Profiler(range(2, 4), tmp_path)) as profiler:
        for step in range(last):
            profiler.begin(step, x)
            with jax.profiler.TraceAnnotation(f"step {step}"):
                x = x + 1
            profiler.end(step + 1, x)
    [trace] = tmp_path.glob("profile/**/perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    traced = {event["name"] for event in events if event.get("name", "").startswith("step ")}
    assert traced == {f"step {step}" for step in range(2, min(last, 4))}
    assert list(tmp_path.glob("profile/**/*.xplane.pb"))


def test_trace_that_other_code_has_ended_is_not_called_unwritable(tmp_path):
    profiler = profiling.Profiler(range(2), tmp_path)
    profiler.begin(0, ())
    jax.profiler.stop_trace()
    with pytest.raises(UserError, match="other code has ended the trace of JAX's profiler"):
        profiler.close()


def test_profile_flag_is_compared_between_processes_at_the_start(tiny, tmp_path, monkeypatch):
    compared = []
    monkeypatch.setattr(run_record, "require_equal", compared.append)
    with pytest.raises(UserError, match="the run ends at step 12"):
        pretrain.train(tiny(), tmp_path, profile=range(10, 13))
    assert {"--profile": "range(10, 13)"} in compared
