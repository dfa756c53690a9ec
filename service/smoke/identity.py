"""Google identity tokens from the metadata server or gcloud, without a stored key."""

import shutil
import subprocess
from urllib.parse import urlsplit

import httpx

from service.smoke.failures import NoIdentityToken

METADATA_HOST = "metadata.google.internal"
METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/identity"
METADATA_TIMEOUT_S = 3.0
GCLOUD_TIMEOUT_S = 60.0
TAG_SEPARATOR = "---"


def audience_of(url: str) -> str:
    """Return the audience of a service's tokens: its main URL, even if the URL is that of a tagged revision.

    Source: https://cloud.google.com/run/docs/authenticating/service-to-service
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition(TAG_SEPARATOR)[2]
    return f"{parts.scheme}://{host}"


def identity_token(audience: str) -> str:
    """Fetch a token from the metadata server (on Google Cloud) or from gcloud (elsewhere).

    Raises:
        NoIdentityToken: neither provides one.
    """
    try:
        return _from_metadata(audience)
    except httpx.HTTPError as error:
        cause = f"no metadata server ({type(error).__name__})"
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise NoIdentityToken(audience, f"{cause} and no gcloud on PATH")
    # gcloud accepts an audience for service accounts only; user accounts need none.
    for flags in ([f"--audiences={audience}"], []):
        ran = subprocess.run(
            [gcloud, "auth", "print-identity-token", *flags],
            capture_output=True,
            text=True,
            check=False,
            timeout=GCLOUD_TIMEOUT_S,
        )
        if ran.returncode == 0 and ran.stdout.strip():
            return ran.stdout.strip()
    message = ran.stderr.strip().partition("\n")[0]
    raise NoIdentityToken(audience, f"{cause}; gcloud says: {message}")


def _from_metadata(audience: str) -> str:
    """Source: https://cloud.google.com/compute/docs/instances/verifying-instance-identity."""
    answer = httpx.get(
        f"http://{METADATA_HOST}{METADATA_PATH}",
        params={"audience": audience},
        headers={"Metadata-Flavor": "Google"},
        timeout=METADATA_TIMEOUT_S,
        trust_env=False,
    )
    token = answer.text.strip()
    if answer.status_code != 200 or answer.headers.get("Metadata-Flavor") != "Google" or not token:
        raise httpx.HTTPError(f"the metadata server answers {answer.status_code}")
    return token
