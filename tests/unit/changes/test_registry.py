"""The registry checks, orders, installs, switches and closes changes, here those of a small library in files."""

import logging
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pallas_gateway.changes import names, versions
from pallas_gateway.changes.change import LOADED, SERVER, START
from pallas_gateway.changes.registry import CHANGES, FAST_PATHS, Registry
from pallas_gateway.config.problems import ConfigurationError
from pallas_gateway.errors import PlatformError

LIBRARY = {
    "": "",
    "text": """
        from fakelib.speech import Voice

        def greeting(name): return f"Hello {name}"
        """,
    "speech": """
        class Voice:
            def say(self, text): return text
            def loudness(self): return self.level
            @staticmethod
            def plain(text): return text

        class Deep(Voice):
            def say(self, text): return text.upper()

        class Quiet(Voice):
            pass
        """,
    "late": "def greeting(name): return name",
}
HEAD = """
from pallas_gateway.changes.change import *
notes = []
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a library `fakelib` and of its changes, `fakechanges`."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for variable in (CHANGES, FAST_PATHS):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(versions.TESTED, "fakelib", "1.0")
    monkeypatch.setattr(names, "replaced", {})
    monkeypatch.setattr(names, "_originals", {})
    package(tmp_path / "fakelib", LIBRARY)
    about = tmp_path / "fakelib-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: fakelib\nVersion: 1.0\n")
    yield tmp_path
    for name in [one for one in [*sys.modules] if one.partition(".")[0] in {"fakelib", "fakechanges"}]:
        del sys.modules[name]


@pytest.fixture
def changes(folder: Path) -> Callable[..., Registry]:
    """Write files of changes, each the arguments of its `Change` and its functions, and return their registry."""

    def written(**files: str) -> Registry:
        package(folder / "fakechanges", {"": "", **{name: f"{HEAD}{text}" for name, text in files.items()}})
        return Registry([import_module("fakechanges")])

    return written


def package(folder: Path, modules: dict[str, str]) -> None:
    folder.mkdir()
    for name, text in modules.items():
        lines = text.split("\n")
        margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        (folder / f"{name or '__init__'}.py").write_text("\n".join(line[margin:] for line in lines))


def repair(name: str, *replaces: str, more: str = "", does: str = "f'{before}{NAME}{original(*given)}'") -> str:
    """The text of a file whose replacement puts the name of the change before what the original returns."""
    return f"""
NAME, before = {name!r}, ""
CHANGE = Change(NAME, REPAIR, ("fakelib",), seen_in="1.0", replaces=({"".join(f"{one}, " for one in replaces)}), {more})
def changed(original, holder):
    notes.append(holder.__name__)
    return lambda *given: {does}
"""


def fast_path(name: str, *replaces: str, more: str = "") -> str:
    return repair(name, *replaces, more=more).replace("REPAIR", "FAST_PATH").replace('seen_in="1.0", ', "")


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    return [
        (one.name, one.levelno, one.getMessage(), vars(one).get("repair", vars(one).get("fast_path")), one.reason)  # type: ignore[attr-defined]
        for one in caplog.records
    ]


GREETING = 'Name("fakelib.text:greeting", ("name",))'


def test_a_name_is_replaced_once_and_noted(changes: Callable[..., Registry]) -> None:
    registry = changes(one=repair("one", GREETING))
    registry.install(START)
    registry.install(START)
    text = import_module("fakelib.text")
    assert text.greeting("Ann") == "oneHello Ann"
    assert names.replaced == {("fakelib.text", "greeting"): text.greeting}


def test_a_change_is_made_after_those_that_it_needs(changes: Callable[..., Registry]) -> None:
    registry = changes(
        a=repair("a", GREETING, more='needs=("c", "b")'),
        b=repair("b", GREETING, more='needs=("c",)'),
        c=repair("c", GREETING),
    )
    registry.install(START)
    assert list(registry.changes) == ["c", "b", "a"]
    assert import_module("fakelib.text").greeting("Ann") == "abcHello Ann"


@pytest.mark.parametrize(
    "other",
    [GREETING, 'EachModule("fakelib", "greeting")', 'EachModule("fakelib.text", "greeting")'],
    ids=["the same name", "a rule with it", "a rule of its module"],
)
def test_two_changes_of_a_name_without_an_order_are_refused(changes: Callable[..., Registry], other: str) -> None:
    with pytest.raises(ValueError, match=r"^b and a both replace greeting of fakelib.*; one must need the other$"):
        changes(a=repair("a", GREETING), b=repair("b", other))


def test_a_method_and_a_function_of_one_name_are_two(changes: Callable[..., Registry]) -> None:
    registry = changes(a=repair("a", 'EachClass("fakelib", "say")'), b=repair("b", 'EachModule("fakelib", "say")'))
    assert set(registry.changes) == {"a", "b"}


@pytest.mark.parametrize("modules", [{"one": ""}, {"inner/__init__": "", "inner/one": ""}], ids=["files", "packages"])
def test_a_folder_of_files_that_is_no_package_is_refused(folder: Path, modules: dict[str, str]) -> None:
    package(folder / "fakechanges", {"": ""})
    (folder / "fakechanges" / "below" / "inner").mkdir(parents=True)
    for name, text in modules.items():
        (folder / "fakechanges" / "below" / f"{name}.py").write_text(text)
    with pytest.raises(ValueError, match=r"fakechanges.below has files of Python but no __init__\.py$"):
        Registry([import_module("fakechanges")])


def test_two_files_with_one_name_are_refused(changes: Callable[..., Registry]) -> None:
    with pytest.raises(ValueError, match=r"fakechanges\.b and fakechanges\.a are both same"):
        changes(a=repair("same", GREETING), b=repair("same", 'Name("fakelib.late:greeting")'))


def test_a_need_that_is_no_change_is_refused(changes: Callable[..., Registry]) -> None:
    with pytest.raises(ValueError, match="a needs gone, which is no change"):
        changes(a=repair("a", GREETING, more='needs=("gone",)'))


def test_helpers_of_changes_are_no_changes(changes: Callable[..., Registry]) -> None:
    assert list(changes(a=repair("a", GREETING), _helper="raise SystemExit").changes) == ["a"]


MISFITS = [
    ('Name("fakelib.text:gone")', "fakelib.text.gone is missing or has changed"),
    ('Name("fakelib.gone:greeting")', "fakelib.gone.greeting is missing or has changed"),
    ('Name("fakelib.text:greeting", ("renamed",))', "fakelib.text.greeting is missing or has changed"),
    ('Name("fakelib.speech:Voice.gone")', "Voice.gone is missing or has changed"),
    ('Name("fakelib.speech:Voice.loudness", reads=("volume",))', "Voice.loudness does not read volume"),
]


@pytest.mark.parametrize(("name", "why"), MISFITS)
@pytest.mark.parametrize("place", ["replaces", "relies_on"])
def test_a_repair_that_does_not_fit_stops_before_anything_is_replaced(
    changes: Callable[..., Registry], name: str, why: str, place: str
) -> None:
    fits = repair("fits", 'Name("fakelib.late:greeting")')
    wrong = repair("wrong", name) if place == "replaces" else repair("wrong", more=f"relies_on=({name},)")
    registry = changes(fits=fits, wrong=wrong)
    with pytest.raises(PlatformError) as raised:
        registry.install(START)
    assert str(raised.value) == f"fakelib 1.0 does not fit: {why}. Install the versions of requirements.lock."
    assert raised.value.reason == "platform_mismatch"
    assert names.replaced == {}


UNMADE = 'def install(): raise KeyError("no such thing")'


@pytest.mark.parametrize(
    ("source", "why"),
    [
        *((fast_path("quick", GREETING, name), why) for name, why in MISFITS),
        (fast_path("quick") + UNMADE, "KeyError: 'no such thing'"),
    ],
)
def test_a_fast_path_that_does_not_fit_or_cannot_be_made_is_off_with_one_warning(
    changes: Callable[..., Registry], caplog: pytest.LogCaptureFixture, source: str, why: str
) -> None:
    registry = changes(quick=source)
    registry.install(START)
    registry.install(START)
    assert said(caplog) == [("pallas.fast_paths", logging.WARNING, "fast path off", "quick", why)]
    assert registry.states() == {"quick": False}
    assert names.replaced == {}


@pytest.mark.parametrize(
    ("tested", "library", "why"),
    [("2.0", "fakelib", "fakelib is 1.0, tested is 2.0"), ("1.0", "absent", "absent is None, tested is 1.0")],
    ids=["other version", "not installed"],
)
def test_a_fast_path_is_on_with_the_tested_versions_only(  # noqa: PLR0917  fixtures
    changes: Callable[..., Registry],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tested: str,
    library: str,
    why: str,
) -> None:
    monkeypatch.setitem(versions.TESTED, library, tested)
    changes(quick=fast_path("quick", GREETING).replace('"fakelib",', f"{library!r},")).install(START)
    assert said(caplog) == [("pallas.fast_paths", logging.WARNING, "fast path off", "quick", why)]


def test_a_repair_that_cannot_be_made_stops(changes: Callable[..., Registry]) -> None:
    with pytest.raises(KeyError, match="no such thing"):
        changes(one=repair("one") + UNMADE).install(START)


@pytest.mark.parametrize(
    ("variable", "value", "off"),
    [
        (CHANGES, "-fix", {"fix"}),
        (CHANGES, " -fix , -quick,", {"fix", "quick"}),
        (FAST_PATHS, "quick", {"quick"}),
        (FAST_PATHS, "off", {"quick", "event_loop"}),
        (CHANGES, "-event_loop", {"event_loop"}),
        (CHANGES, "", set()),
    ],
)
def test_the_environment_switches_changes_off(  # noqa: PLR0917  fixtures
    changes: Callable[..., Registry],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
    off: set[str],
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(variable, value)
    late = 'Name("fakelib.late:greeting")'
    registry = changes(fix=repair("fix", GREETING), quick=fast_path("quick", late))
    registry.check_switches()
    registry.install(START)
    assert {name for name, one in registry.changes.items() if not one.is_on} == off - {"event_loop"}
    assert registry.is_setting_on("event_loop") is ("event_loop" not in off)
    assert registry.states() == {"quick": "quick" not in off, "event_loop": "event_loop" not in off}
    why = "switched off by the environment"
    assert said(caplog) == [
        *([("pallas.changes", logging.WARNING, "repair off", "fix", why)] if "fix" in off else []),
        *(
            ("pallas.fast_paths", logging.INFO, "fast path off", name, why)
            for name in sorted(off - {"fix"}, reverse=True)
        ),
    ]


@pytest.mark.parametrize("value", [*versions.SETTINGS, "off", "quick, event_loop"])
def test_names_of_fast_paths_and_settings_are_known(
    changes: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    monkeypatch.setenv(FAST_PATHS, value)
    changes(quick=fast_path("quick", GREETING)).check_switches()
    assert not caplog.records


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({CHANGES: "-fxi"}, "fxi in PALLAS_CHANGES (did you mean 'fix'?)"),
        ({CHANGES: "-off"}, "off in PALLAS_CHANGES"),
        ({FAST_PATHS: "fix"}, "fix in PALLAS_FAST_PATHS"),
        ({FAST_PATHS: "-off"}, "-off in PALLAS_FAST_PATHS (did you mean 'off'?)"),
        ({CHANGES: "-openai_runs", FAST_PATHS: "zzz"}, "openai_runs in PALLAS_CHANGES, zzz in PALLAS_FAST_PATHS"),
    ],
)
def test_unknown_names_are_one_warning_and_switch_nothing_off(
    changes: Callable[..., Registry],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    environment: dict[str, str],
    named: str,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    registry = changes(fix=repair("fix", GREETING), quick=fast_path("quick", 'Name("fakelib.late:greeting")'))
    registry.check_switches()
    registry.install(START)
    assert [(one.message, vars(one)["names"]) for one in caplog.records] == [("unknown changes", named)]
    assert all(one.is_on for one in registry.changes.values())


def test_a_change_without_a_minus_is_a_problem_of_the_configuration(
    changes: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHANGES, "fix")
    with pytest.raises(ConfigurationError) as raised:
        changes(fix=repair("fix", GREETING)).check_switches()
    assert str(raised.value) == "PALLAS_CHANGES: 'fix' must begin with '-': changes can only be switched off"


def test_each_is_made_at_its_time(changes: Callable[..., Registry]) -> None:
    registry = changes(
        early=repair("early", GREETING, more="when=SERVER"), one=repair("one", 'Name("fakelib.speech:Voice.say")')
    )
    registry.install(SERVER)
    assert [name for name, one in registry.changes.items() if one.is_on] == ["early"]
    registry.install(START)
    assert all(one.is_on for one in registry.changes.values())


def test_a_change_of_a_library_that_is_imported_late_waits_for_it(changes: Callable[..., Registry]) -> None:
    registry = changes(one=repair("one", 'Name("fakelib.late:greeting")', more='when=Loaded("fakelib")'))
    registry.install(START)
    registry.install(LOADED)
    assert "fakelib" not in sys.modules
    import_module("fakelib")
    registry.install(LOADED)
    assert "fakelib.late" not in sys.modules  # its name is checked and replaced when it is imported
    late = import_module("fakelib.late")
    registry.install(LOADED)
    assert late.greeting("Ann") == "oneAnn"


def test_a_name_of_a_late_library_that_does_not_fit_is_found_when_it_is_imported(
    changes: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    name, when = 'Name("fakelib.late:gone")', 'when=Loaded("fakelib")'
    registry = changes(
        one=repair("one", name, more=when), quick=fast_path("quick", name, more=f"needs=('one',), {when}")
    )
    import_module("fakelib")
    registry.install(LOADED)
    assert registry.states() == {"quick": True}
    import_module("fakelib.late")
    with pytest.raises(PlatformError, match=r"fakelib\.late\.gone is missing"):
        registry.install(LOADED)
    registry.changes["one"].is_on = False
    registry.install(LOADED)
    assert registry.states() == {"quick": False}
    assert len(caplog.records) == 1


def test_each_module_that_has_a_name_is_changed(changes: Callable[..., Registry]) -> None:
    registry = changes(one=repair("one", 'EachModule("fakelib", "greeting")', more='when=Loaded("fakelib")'))
    text = import_module("fakelib.text")
    registry.install(LOADED)
    assert text.greeting("Ann") == "oneHello Ann"
    late = import_module("fakelib.late")
    registry.install(LOADED)
    registry.install(LOADED)
    assert (text.greeting("Ann"), late.greeting("Ann")) == ("oneHello Ann", "oneAnn")


def test_each_class_that_defines_a_method_is_changed_where_it_is_defined(changes: Callable[..., Registry]) -> None:
    registry = changes(
        one=repair(
            "one", 'EachClass("fakelib", "say")', more='when=Loaded("fakelib.text")', does="NAME + original(*given)"
        )
    )
    import_module("fakelib.text")  # imports Voice from the module that defines it
    registry.install(LOADED)
    speech = import_module("fakelib.speech")
    assert [cls().say("hi") for cls in (speech.Voice, speech.Deep, speech.Quiet)] == ["onehi", "oneHI", "onehi"]
    assert sorted(names.replaced) == [("fakelib.speech:Deep", "say"), ("fakelib.speech:Voice", "say")]
    assert registry.changes["one"].module.notes == ["Voice", "Deep"]


def test_a_static_method_stays_one(changes: Callable[..., Registry]) -> None:
    changes(one=repair("one", 'Name("fakelib.speech:Voice.plain")')).install(START)
    voice = import_module("fakelib.speech").Voice
    assert (voice.plain("x"), voice().plain("x")) == ("onex", "onex")


def test_another_function_of_the_file_may_make_a_replacement(changes: Callable[..., Registry]) -> None:
    other = repair("one", GREETING, 'Name("fakelib.speech:Voice.say", by="other")')
    changes(one=f"{other}\ndef other(original, holder): return 'other'").install(START)
    assert import_module("fakelib.speech").Voice.say == "other"


def test_a_change_may_install_what_is_no_replacement_once(changes: Callable[..., Registry]) -> None:
    registry = changes(one=repair("one") + "def install(): notes.append('installed')")
    registry.install(START)
    registry.install(START)
    assert registry.changes["one"].module.notes == ["installed"]


async def test_what_changes_hold_is_closed_the_last_first_also_where_one_fails(
    changes: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHANGES, "-off_")
    close = "async def close(): import_order.append(NAME)"
    shared = "from fakelib import __path__ as import_order\n"
    registry = changes(
        a=shared + repair("a") + close,
        b=shared + repair("b", more='needs=("a",)') + f"{close}; raise KeyError(NAME)",
        c=shared + repair("c", more='needs=("b",)') + close,
        d=shared + repair("off_") + close,
        e=shared + repair("later", more="when=SERVER") + close,
    )
    registry.install(START)
    with pytest.raises(KeyError, match="b"):
        await registry.close()
    assert import_module("fakelib").__path__[1:] == ["c", "b", "a"]


async def test_what_changes_do_in_the_background_is_waited_for_if_they_are_on(
    changes: Callable[..., Registry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CHANGES, "-off_")
    shared = "from fakelib import __path__ as import_order\n"
    settled = "async def settled(): import_order.append(NAME)"
    registry = changes(
        a=shared + repair("a") + settled, b=repair("b", more='needs=("a",)'), c=shared + repair("off_") + settled
    )
    registry.install(START)
    await registry.settled()
    assert import_module("fakelib").__path__[1:] == ["a"]


def test_a_library_that_does_not_fit_stops_only_the_modules_that_use_it(changes: Callable[..., Registry]) -> None:
    registry = changes(
        gone="""
CHANGE = Change("gone", REPAIR, ("fakelib",), when=Loaded("fakelib.text"), replaces=(Name("fakelib.text:missing"),))
def changed(original, holder): return original
""",
        late="""
CHANGE = Change("late", REPAIR, ("fakelib",), when=Loaded("fakelib.speech"), replaces=(Name("fakelib.speech:Voice"),))
def changed(original, holder): return original
""",
    )
    import_module("fakelib.text")

    registry.install(LOADED, {"fakelib.speech"})

    assert registry.changes["late"].is_on
    with pytest.raises(PlatformError, match=r"fakelib\.text\.missing is missing"):
        registry.install(LOADED, {"fakelib.text"})
