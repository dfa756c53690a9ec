"""An identity token for a service that asks who is calling, from where one is to be had without a stored key."""

import http.client
import shutil
import subprocess
from urllib.parse import quote, urlsplit

from service.smoke.failures import NoIdentityToken

METADATA_HOST = "metadata.google.internal"
METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/identity"
METADATA_TIMEOUT_S = 3.0
GCLOUD_TIMEOUT_S = 60.0
TAG_SEPARATOR = "---"


def audience_of(url: str) -> str:
    """Return whom a token must be made out to: the service's own address, also when a tag's is called.

    Source: https://cloud.google.com/run/docs/authenticating/service-to-service
    """
    parts = urlsplit(url)
    host = parts.netloc.rpartition(TAG_SEPARATOR)[2]
    return f"{parts.scheme}://{host}"


def identity_token(audience: str) -> str:
    """Return a token from the metadata server (on Google Cloud) or from gcloud (elsewhere).

    Raises:
        NoIdentityToken: neither has one; says why.
    """
    try:
        return _from_metadata(audience)
    except (OSError, http.client.HTTPException) as error:
        cause = f"no metadata server ({type(error).__name__})"
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        raise NoIdentityToken(audience, f"{cause} and no gcloud on PATH")
    # A service account names the audience; a person's account may not, and needs none.
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
    said = ran.stderr.strip().partition("\n")[0]
    raise NoIdentityToken(audience, f"{cause}; gcloud says: {said}")


def _from_metadata(audience: str) -> str:
    """Source: https://cloud.google.com/compute/docs/instances/verifying-instance-identity."""
    connection = http.client.HTTPConnection(METADATA_HOST, timeout=METADATA_TIMEOUT_S)
    try:
        path = f"{METADATA_PATH}?audience={quote(audience, safe='')}"
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        token = answer.read().decode().strip()
        if answer.status != 200 or answer.headers.get("Metadata-Flavor") != "Google" or not token:
            raise ConnectionError(f"it answers {answer.status}")
        return token
    finally:
        connection.close()
