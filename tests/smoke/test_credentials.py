"""Keys and identities: sent where they belong, demanded by the service that has them, never printed."""

import pytest

from service.cli import build_parser
from service.smoke import identity
from service.smoke.client import Credentials
from service.smoke.command import run
from service.smoke.failures import NoIdentityToken
from tests.smoke.stand_in import StandIn, StandInServer


@pytest.fixture
def smoke(capsys):
    def start(does: StandIn, *flags: str) -> tuple[int, str]:
        with StandInServer(does) as server:
            code = run(build_parser().parse_args(["smoke", server.url, "--timeout", "1", "--requests", "1", *flags]))
        return code, capsys.readouterr().out

    return start


def test_each_goes_into_the_header_that_cloud_run_reads():
    assert Credentials().headers() == {}
    assert Credentials("key").headers() == {"Authorization": "Bearer key"}
    assert Credentials(None, "token").headers() == {"Authorization": "Bearer token"}
    both = Credentials("key", "token")
    assert both.headers() == {"Authorization": "Bearer key", "X-Serverless-Authorization": "Bearer token"}


@pytest.mark.parametrize(
    ("does", "flags"),
    [
        (StandIn(api_key="s3cret"), ["--api-key", "s3cret"]),
        (StandIn(identity_token="t0ken"), ["--identity-token", "t0ken"]),
        (StandIn(api_key="s3cret", identity_token="t0ken"), ["--api-key", "s3cret", "--identity-token", "t0ken"]),
    ],
)
def test_the_right_credentials_open_it_and_are_not_printed(smoke, does, flags):
    code, out = smoke(does, *flags)
    assert code == 0, out
    assert "refused" in out
    assert "s3cret" not in out
    assert "t0ken" not in out


@pytest.mark.parametrize(
    ("does", "flags", "message"),
    [
        (StandIn(api_key="s3cret"), ["--api-key", "wr0ng"], "it does not take this key"),
        (StandIn(api_key="s3cret"), [], "it requires a key; give --api-key KEY"),
        (StandIn(identity_token="t0ken"), [], "the platform requires an identity; give --identity-token auto"),
        (StandIn(identity_token="t0ken"), ["--identity-token", "wr0ng"], "this identity may not call it"),
        (StandIn(), ["--api-key", "any"], "answers without the key: is API_KEY set on the service?"),
        (StandIn(), ["--identity-token", "any"], "answers without an identity token: may anyone call it?"),
    ],
)
def test_wrong_or_missing_ones_are_reported_with_the_remedy(smoke, does, flags, message):
    code, out = smoke(does, *flags)
    assert code == 1
    assert message in out
    assert "wr0ng" not in out


def test_a_secret_may_lie_in_a_file(smoke, tmp_path):
    file = tmp_path / "key"
    file.write_text("s3cret\n")
    assert smoke(StandIn(api_key="s3cret"), "--api-key", f"@{file}")[0] == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--api-key", "@/no/such/file"], "cannot read /no/such/file"),
        (["--api-key", "two\nlines"], "printable ASCII"),
        (["--timeout", "-1"], "'-1' is not a number above 0"),
        (["--requests", "many"], "'many' is not a number above 0"),
    ],
)
def test_a_wrong_flag_is_exit_code_2(capsys, flags, message):
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(["smoke", "http://127.0.0.1:1", *flags])
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://host", "http://", "http://host:99999", "http://host:x"])
def test_a_wrong_address_is_exit_code_2(capsys, url):
    with pytest.raises(SystemExit) as end:
        build_parser().parse_args(["smoke", url])
    assert end.value.code == 2
    assert "is not an address" in capsys.readouterr().err


def test_a_token_is_made_out_to_the_service_and_not_to_a_tag():
    assert identity.audience_of("https://candidate---levserve-abc-uc.a.run.app") == "https://levserve-abc-uc.a.run.app"
    assert identity.audience_of("https://levserve-abc-uc.a.run.app/v1") == "https://levserve-abc-uc.a.run.app"


@pytest.fixture
def gcloud(tmp_path, monkeypatch):
    """A scripted gcloud, on a machine without a metadata server."""
    monkeypatch.setattr(identity, "METADATA_HOST", "metadata.invalid")

    def install(script: str) -> None:
        path = tmp_path / "gcloud"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return install


def test_gcloud_is_asked_for_the_audience_and_a_persons_account_without(gcloud):
    gcloud('[ "$3" = --audiences=https://a.run.app ] && echo for-the-audience')
    assert identity.identity_token("https://a.run.app") == "for-the-audience"
    gcloud('[ $# = 2 ] && echo of-a-person || { echo "ERROR: Invalid account type" >&2; exit 1; }')
    assert identity.identity_token("https://a.run.app") == "of-a-person"


def test_without_any_source_the_causes_are_reported_and_no_check_runs(gcloud, capsys):
    gcloud('echo "ERROR: no active account" >&2; exit 1')
    with pytest.raises(NoIdentityToken, match=r"no metadata server .*; gcloud says: ERROR: no active account"):
        identity.identity_token("https://a.run.app")
    code = run(build_parser().parse_args(["smoke", "http://127.0.0.1:1", "--identity-token", "auto"]))
    assert code == 2
    assert "Give one with --identity-token TOKEN." in capsys.readouterr().err


def test_a_missing_gcloud_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "METADATA_HOST", "metadata.invalid")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoIdentityToken, match="and no gcloud on PATH"):
        identity.identity_token("https://a.run.app")
