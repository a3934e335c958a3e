"""Loading: includes, overrides, all faults at once, and the way back to TOML."""

import types
import typing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra.config import Config, dump, load
from libra.config.schema import BucketConfig, CostConfig
from libra.errors import ConfigError

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.toml"
SIMULATED = QUICKSTART.with_name("sim-batch.toml")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def faults(path: Path, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as e:
        load(path, overrides)
    return e.value.problems


def test_an_empty_file_is_all_defaults(tmp_path):
    assert load(write(tmp_path / "a.toml", "")) == Config()


def test_the_quickstart_loads_with_its_parts():
    config = load(QUICKSTART)
    assert config.devices == 4
    assert config.warm_start.give_up == 0.7
    assert config.include == ()


def test_later_parts_win_over_earlier_ones_and_the_file_over_all(tmp_path):
    write(tmp_path / "p" / "one.toml", "[trainer]\nlr = 1.0\nbeta1 = 0.1\neps = 0.5\n")
    write(tmp_path / "p" / "two.toml", "[trainer]\nlr = 2.0\nbeta1 = 0.2\n")
    top = write(tmp_path / "top.toml", 'include = ["p/one.toml", "p/two.toml"]\n[trainer]\nlr = 3.0\n')
    trainer = load(top).trainer
    assert (trainer.lr, trainer.beta1, trainer.eps) == (3.0, 0.2, 0.5)
    assert load(top, ["--trainer.lr", "4"]).trainer.lr == 4.0


def test_parts_are_found_relative_to_the_file_that_includes_them(tmp_path):
    write(tmp_path / "p" / "q" / "deep.toml", "[run]\nsteps = 7\n")
    write(tmp_path / "p" / "part.toml", 'include = ["q/deep.toml"]\n')
    assert load(write(tmp_path / "top.toml", 'include = ["p/part.toml"]\n')).run.steps == 7


def test_an_array_replaces_the_array_of_a_part(tmp_path):
    write(tmp_path / "part.toml", '[[bucket]]\nname = "a"\n[[bucket]]\nname = "b"\n')
    top = write(tmp_path / "top.toml", 'include = ["part.toml"]\n[[bucket]]\nname = "c"\n')
    assert [b.name for b in load(top).bucket] == ["c"]


def test_a_cycle_of_includes_is_refused_with_its_chain(tmp_path):
    write(tmp_path / "a.toml", 'include = ["b.toml"]\n')
    write(tmp_path / "b.toml", 'include = ["a.toml"]\n')
    (problem,) = faults(tmp_path / "a.toml")
    assert "a.toml -> b.toml -> a.toml" in problem


def test_the_same_part_may_be_included_twice_without_being_a_cycle(tmp_path):
    write(tmp_path / "base.toml", "[run]\nsteps = 7\n")
    write(tmp_path / "a.toml", 'include = ["base.toml"]\n')
    write(tmp_path / "b.toml", 'include = ["base.toml"]\n')
    assert load(write(tmp_path / "top.toml", 'include = ["a.toml", "b.toml"]\n')).run.steps == 7


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        (["--trainer.lr", "1e-4"], lambda c: c.trainer.lr, 1e-4),
        (["--trainer.lr=1e-4"], lambda c: c.trainer.lr, 1e-4),
        (["--bucket.0.max_batch", "64"], lambda c: c.bucket[0].max_batch, 64),
        (["--rollout.max_lag", "3"], lambda c: c.rollout.max_lag, 3),
        (["--rollout.max_lag", "none"], lambda c: c.rollout.max_lag, None),
        (["--run.mode", "sync"], lambda c: c.run.mode, "sync"),
        (["--run.name=7"], lambda c: c.run.name, "7"),
        (["--eval.at_end", "false"], lambda c: c.eval.at_end, False),
        (["--env.tool.deadline_s=2"], lambda c: c.env.tool.deadline_s, 2.0),
        (["--run.seed", "1", "--run.seed", "2"], lambda c: c.run.seed, 2),
        (["--run.directory", "--odd"], lambda c: c.run.directory, "--odd"),
    ],
)
def test_an_override_is_read_by_the_type_of_its_field(tmp_path, override, read, expected):
    got = read(load(write(tmp_path / "a.toml", "[rollout]\nmax_lag = 1\n"), override))
    assert got == expected
    assert type(got) is type(expected)


def test_an_override_of_one_bucket_leaves_the_others(tmp_path):
    path = write(tmp_path / "a.toml", '[[bucket]]\nname = "a"\nengines = 2\n[[bucket]]\nname = "b"\n')
    assert load(path, ["--bucket.1.engines", "5"]).bucket == (
        BucketConfig(name="a", engines=2),
        BucketConfig(name="b", engines=5),
    )


def test_all_faults_of_all_tables_and_parts_come_at_once(tmp_path):
    write(tmp_path / "part.toml", "[model]\nhiden = 3\nheads = 0\n")
    top = write(
        tmp_path / "top.toml",
        'include = ["part.toml"]\n[run]\nmode = "asynch"\n[trainer]\nlr = "fast"\nbeta1 = 2\n[[bucket]]\ntp = 0\n',
    )
    got = faults(top, "--eval.tasks", "many")
    assert got == [
        f"model.hiden in {tmp_path}/part.toml: unknown key; did you mean model.hidden?",
        f"model.heads in {tmp_path}/part.toml: got 0, expected a whole number of at least 1",
        f"run.mode in {top}: got 'asynch', expected one of 'async', 'one-step-off', 'sync' (nearest: 'async')",
        f"trainer.lr in {top}: got 'fast', expected a number above 0",
        f"trainer.beta1 in {top}: got 2, expected a number from 0 to 1",
        f"bucket.0.tp in {top}: got 0, expected a whole number of at least 1",
        "eval.tasks on the command line: got 'many', expected a whole number of at least 0",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr = 1", "did you mean trainer.lr or warm_start.lr?"),
        ("[trianer]\nlr = 1", "did you mean trainer?"),
        ("trainer = 3", "trainer in {}: got 3, expected a table"),
        ("[bucket]\ntp = 1", "expected an array of tables ([[bucket]])"),
        ("bucket = []", "expected at least 1 entry"),
        ("[env]\nname = 'calculater'", "expected one of 'calculator', 'lookup', 'workload' (nearest: 'calculator')"),
        ("[env.tool]\ndeadline = 3", "did you mean env.tool.deadline_s?"),
        ("[trainer]\nlr = nan", "expected a number above 0"),
        ("[trainer]\nlr = inf", "and finite"),
        ("[run]\nseed = true", "got true, expected a whole number"),
        ("[run]\nname = '../up'", "letters, digits"),
        ('[run]\nname = "a\\n"', "letters, digits"),
        ("[rollout]\nmax_lag = -1", "expected a whole number of at least 0 or none"),
        ("include = 3", "expected an array of paths"),
        ("[run\n", "not valid TOML: "),
        ("zzz = 1", "a configuration knows include, run, model"),
    ],
)
def test_a_fault_says_what_was_expected(tmp_path, text, says):
    path = write(tmp_path / "a.toml", text)
    (problem,) = faults(path)
    assert says.format(path) in problem


@pytest.mark.parametrize(
    ("override", "says"),
    [
        (["--trainer.lrr", "1"], "trainer.lrr on the command line: unknown key; did you mean trainer.lr?"),
        (["--trainer.lr"], "its value is missing"),
        (["--trainer.lr.deep", "1"], "trainer.lr on the command line: got a table, expected a number"),
        (["--bucket.3.tp", "1"], "bucket has entries 0 to 0"),
        (["--env.tool", "3"], "got '3', expected a table"),
        (["stray"], "expected --section.key value"),
    ],
)
def test_a_wrong_override_is_refused(tmp_path, override, says):
    (problem,) = faults(write(tmp_path / "a.toml", ""), *override)
    assert says in problem


def test_a_missing_file_names_the_nearest_one(tmp_path):
    write(tmp_path / "quickstart.toml", "")
    (problem,) = faults(tmp_path / "quikstart.toml")
    assert "no such file; did you mean" in problem
    assert "quickstart.toml?" in problem


# --- the way back


def values_of(kind: typing.Any) -> st.SearchStrategy[typing.Any]:
    """Legal values of a field's type, built from the schema itself so that a new field is covered without a word here."""
    metas = typing.get_args(kind)[1:] if typing.get_origin(kind) is typing.Annotated else ()
    base = typing.get_args(kind)[0] if metas else kind
    bounds = {k: getattr(m, k) for m in metas for k in ("ge", "gt", "le", "lt") if getattr(m, k) is not None}
    origin, args = typing.get_origin(base), typing.get_args(base)
    if CostConfig in (base, *args):  # parts must not contradict themselves
        return st.sampled_from([None, load(SIMULATED).cost])
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        return st.builds(
            base, **{f.name: values_of(f.type) for f in msgspec.structs.fields(base) if f.name != "include"}
        )
    if origin is tuple:
        return st.lists(values_of(args[0]), min_size=1, max_size=3).map(tuple)
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is types.UnionType and type(None) not in args:
        return st.one_of(*(values_of(a) for a in args))
    if type(None) in args:
        return st.none() | st.one_of(*(values_of(a) for a in args if a is not type(None)))
    if base is int:
        return st.integers(bounds.get("ge", 0), bounds.get("le", 2**53))
    if base is float:
        low, high = bounds.get("gt", bounds.get("ge")), bounds.get("le")
        return st.floats(low, high, exclude_min="gt" in bounds, allow_nan=False, allow_infinity=False)
    if base is bool:
        return st.booleans()
    pattern = next((m.pattern for m in metas if m.pattern), None)
    return st.from_regex(pattern, fullmatch=True) if pattern else st.text(st.characters(exclude_categories=["Cs"]))


@given(config=values_of(Config))
def test_what_is_dumped_loads_back_equal(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_text(dump(config), newline="")
    assert load(path) == config


def test_a_dumped_quickstart_stands_alone(tmp_path):
    config = load(QUICKSTART, ["--rollout.max_lag", "5"])
    assert load(write(tmp_path / "config.toml", dump(config))) == config
