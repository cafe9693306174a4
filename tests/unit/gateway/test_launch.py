"""From options, files and folders to settings and workspaces: which ones, which model, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.config import AgentSettings, InvalidConfigError
from laneway.gateway.launch import KEYS, ServeOptions, model_of, prepare

SCRIPTED = "default_model: scripted\n"


def folder_with(path: Path, text: str = SCRIPTED, ending: str = "yaml") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / f"agent.{ending}").write_text(text)
    return path


def options(folder: Path, *workspaces: str, **more: object) -> ServeOptions:
    return ServeOptions(folder=folder, workspaces=workspaces, **more)  # type: ignore[arg-type]


def problems(given: ServeOptions, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidConfigError) as refused:
        prepare(given, environ or {})
    return [str(each) for each in refused.value.problems]


# ---- which workspaces ----


def test_without_anything_the_current_folder_is_served_by_the_scripted_model(tmp_path: Path) -> None:
    launch = prepare(options(tmp_path), {})
    (spec,) = launch.workspaces
    assert (spec.name, spec.folder, spec.agent.default_model) == ("default", tmp_path, "scripted")
    assert any("THE MODEL IS SCRIPTED" in note for note in launch.notes)


def test_a_model_without_a_key_is_told_with_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (said,) = problems(options(tmp_path, model="openai/gpt-5"))
    assert "OPENAI_API_KEY is not set" in said
    assert "--model scripted" in said
    assert "AsyncAgent" not in said


def test_the_file_of_the_current_folder_may_set_the_server_too(tmp_path: Path) -> None:
    folder_with(tmp_path, "name: mine\ndefault_model: scripted\ngateway: {port: 9000}\n")
    launch = prepare(options(tmp_path), {})
    assert launch.settings.port == 9000
    assert [spec.name for spec in launch.workspaces] == ["mine"]
    assert launch.files == (str(tmp_path / "agent.yaml"),)


@pytest.mark.parametrize(("ending", "text"), [("toml", 'system = "a"\n'), ("hcl", 'system = "a"\n')])
def test_a_workspace_has_a_file_of_any_format(tmp_path: Path, ending: str, text: str) -> None:
    folder_with(tmp_path / "w", text, ending)
    (spec,) = prepare(options(tmp_path, "w"), {}).workspaces
    assert (spec.name, spec.agent.system) == ("w", "a")


def test_several_folders_have_their_own_settings_and_the_order_that_was_given(tmp_path: Path) -> None:
    folder_with(tmp_path / "b", "system: of b\n")
    folder_with(tmp_path / "a", "name: first\n")
    specs = prepare(options(tmp_path, "b", "a"), {}).workspaces
    assert [(spec.name, spec.agent.system) for spec in specs] == [("b", "of b"), ("first", None)]


def test_the_main_file_lists_workspaces_and_each_may_override_it(tmp_path: Path) -> None:
    folder_with(tmp_path / "one", "max_tool_rounds: 3\n")
    (tmp_path / "two").mkdir()
    main = tmp_path / "laneway.yaml"
    main.write_text(
        "default_model: scripted\nmax_tool_rounds: 1\ngateway: {port: 1234}\n"
        "workspaces:\n  first: {path: one}\n  second: {path: two, max_tool_rounds: 2}\n"
    )
    launch = prepare(options(tmp_path, config=str(main)), {})
    assert launch.settings.port == 1234
    found = [(spec.name, spec.folder.name, spec.agent.max_tool_rounds) for spec in launch.workspaces]
    assert found == [("first", "one", 3), ("second", "two", 2)]


@pytest.mark.parametrize("wanted", ["second", "two"])
def test_of_those_that_are_listed_some_can_be_chosen_by_name_or_folder(tmp_path: Path, wanted: str) -> None:
    for name in ("one", "two"):
        folder_with(tmp_path / name)
    main = tmp_path / "laneway.yaml"
    main.write_text("workspaces: {first: one, second: two}\n")
    (spec,) = prepare(options(tmp_path, wanted, config=str(main)), {}).workspaces
    assert (spec.name, spec.folder) == ("second", tmp_path / "two")


def test_a_main_file_without_workspaces_serves_its_own_folder(tmp_path: Path) -> None:
    folder_with(tmp_path / "etc", "system: from the folder\n")
    main = tmp_path / "etc" / "laneway.yaml"
    main.write_text("max_tool_rounds: 4\n")
    (spec,) = prepare(options(tmp_path, config=str(main)), {}).workspaces
    assert (spec.name, spec.folder) == ("default", tmp_path / "etc")
    assert (spec.agent.system, spec.agent.max_tool_rounds) == ("from the folder", 4)


def test_a_workspace_knows_where_its_settings_came_from(tmp_path: Path) -> None:
    folder_with(tmp_path)
    (spec,) = prepare(options(tmp_path, model="scripted"), {}).workspaces
    assert spec.effective is not None
    assert str(spec.effective.origin("default_model")) == "--set default_model"


# ---- which model, and what it may do ----


@pytest.mark.parametrize(("variable", "model"), KEYS)
def test_a_key_in_the_environment_says_which_model(variable: str, model: str) -> None:
    assert model_of(AgentSettings(), {variable: "sk-none"}) == (model, f"{variable} is set")


@pytest.mark.slow  # the packages of a provider take long to import
def test_a_model_that_a_key_is_for_is_said_and_the_key_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-none")
    notes = prepare(options(tmp_path), {"OPENAI_API_KEY": "sk-none"}).notes
    assert any("openai/gpt-5 (OPENAI_API_KEY is set)" in note for note in notes)
    assert not any("SCRIPTED" in note or "sk-none" in note for note in notes)


def test_a_key_means_nothing_where_real_models_are_forbidden(tmp_path: Path) -> None:
    launch = prepare(options(tmp_path), {"OPENAI_API_KEY": "x", "LANEWAY_REAL_MODELS": "0"})
    assert launch.workspaces[0].agent.default_model == "scripted"


def test_what_a_file_names_beats_a_key_and_an_option_beats_the_file(tmp_path: Path) -> None:
    folder_with(tmp_path)
    environ = {"OPENAI_API_KEY": "x"}
    assert prepare(options(tmp_path), environ).workspaces[0].agent.default_model == "scripted"
    (said,) = problems(options(tmp_path, model="nobody/x"), environ)
    assert "nobody" in said


def test_who_says_nothing_of_approvals_gets_the_safe_way(tmp_path: Path) -> None:
    launch = prepare(options(tmp_path), {})
    agent = launch.workspaces[0].agent
    assert agent.permissions is None
    assert agent.confirmation is not None
    assert agent.confirmation.enabled
    assert agent.confirmation.timeout_action == "reject"
    assert any("everything else asks an operator" in note for note in launch.notes)


def test_what_a_file_says_of_approvals_stays_as_it_is(tmp_path: Path) -> None:
    folder_with(tmp_path, SCRIPTED + "permissions: {default_decision: allow}\nconfirmation: {enabled: false}\n")
    launch = prepare(options(tmp_path), {})
    agent = launch.workspaces[0].agent
    assert agent.confirmation is not None
    assert not agent.confirmation.enabled
    assert not any("asks an operator" in note for note in launch.notes)


# ---- what is refused ----


def test_all_problems_of_all_workspaces_come_at_once_and_each_once(tmp_path: Path) -> None:
    folder_with(tmp_path / "a", "tolls: []\n")
    folder_with(tmp_path / "b", "max_tool_rounds: 0\ndisabled_tools: [fly]\n")
    found = problems(options(tmp_path, "a", "b", "nowhere"))
    assert len(found) == 4
    assert all(any(word in each for each in found) for word in ("tolls", "max_tool_rounds", "fly", "nowhere"))


def test_two_workspaces_with_one_name_are_refused(tmp_path: Path) -> None:
    folder_with(tmp_path / "a" / "same")
    folder_with(tmp_path / "b" / "same")
    (said,) = problems(options(tmp_path, "a/same", "b/same"))
    assert "both called 'same'" in said


def test_a_name_that_no_row_can_have_is_refused(tmp_path: Path) -> None:
    folder_with(tmp_path, "name: a/b\n")
    (said,) = problems(options(tmp_path))
    assert "has no '/'" in said


def test_a_listed_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    main = tmp_path / "laneway.yaml"
    main.write_text("workspaces: {a: gone}\n")
    (said,) = problems(options(tmp_path, config=str(main)))
    assert "there is no such folder" in said


def test_two_files_for_one_workspace_are_refused(tmp_path: Path) -> None:
    folder_with(tmp_path)
    folder_with(tmp_path, "system = 'x'\n", "toml")
    assert any("more than one file" in each for each in problems(options(tmp_path)))


def test_a_channel_that_is_wrong_is_told_with_the_other_problems(tmp_path: Path) -> None:
    folder_with(tmp_path / "a", "max_tool_rounds: 0\n")
    main = tmp_path / "laneway.yaml"
    main.write_text("gateway: {channels: {x: {kind: pigeon}}}\nworkspaces: {a: a}\n")
    found = problems(options(tmp_path, config=str(main)))
    assert len(found) == 2
    assert f"{main}:1:25: gateway.channels.x.kind is one of: webhook, telegram" in found


def test_a_file_whose_shape_means_one_run_at_a_time_is_told_about(tmp_path: Path) -> None:
    folder_with(tmp_path, SCRIPTED + "queue: {mode: steer}\n")
    assert any("One run at a time" in note for note in prepare(options(tmp_path), {}).notes)
    folder_with(tmp_path, SCRIPTED + "queue: {mode: steer}\nlanes: {main: 1}\n")
    assert not any("One run at a time" in note for note in prepare(options(tmp_path), {}).notes)


def test_an_option_is_called_by_its_own_name(tmp_path: Path) -> None:
    (said,) = problems(options(tmp_path, overrides=["gateway.log_level=loud"]))
    assert said.startswith("--log-level: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{tls_certificate: agent.yaml}", "needs gateway.tls_key"),
        ("{tls_certificate: a.pem, tls_key: b.pem}", "a.pem that can be read"),
        ("{tls_certificate: agent.yaml, tls_key: agent.yaml}", "TLS cannot be set up"),
    ],
)
def test_wrong_files_for_tls_are_refused(tmp_path: Path, text: str, words: str) -> None:
    folder_with(tmp_path, f"gateway: {text}\n")
    assert any(words in each for each in problems(options(tmp_path)))
