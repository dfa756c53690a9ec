"""Whether a bucket lies in another region than this machine, which costs time and money by the byte.

Source: https://cloud.google.com/compute/docs/metadata/predefined-metadata-keys (instance/region, instance/zone)
"""

import http.client
import json
import logging
from contextlib import closing

from service.errors import ServiceError
from service.storage.gcs.http import GcsTransport
from service.storage.location import GcsLocation
from service.storage.retry import TransferLimits, TransientFault

logger = logging.getLogger(__name__)

METADATA_HOST = "metadata.google.internal"
TIMEOUT_S = 1.0
MAX_BYTES = 1024 * 1024


def say_if_elsewhere(location: GcsLocation, emulator_host: str | None, metadata_host: str = METADATA_HOST) -> None:
    """Warn of a bucket in another region; say nothing where either region is not known."""
    if emulator_host and metadata_host == METADATA_HOST:
        return
    own = own_region(metadata_host)
    bucket = None if own is None else bucket_region(location, emulator_host)
    if bucket is not None and bucket != own:
        facts = {"bucket": location.bucket, "bucket_region": bucket, "region": own}
        logger.warning("the bucket is in another region, so that each byte costs time and egress", extra=facts)


def own_region(host: str = METADATA_HOST) -> str | None:
    """Return the region of this machine; None outside of Google Cloud."""
    for key in ("region", "zone"):
        connection = http.client.HTTPConnection(host, timeout=TIMEOUT_S)
        try:
            with closing(connection):
                path = f"/computeMetadata/v1/instance/{key}"
                connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
                answer = connection.getresponse()
                # projects/123/regions/us-central1, projects/123/zones/us-central1-a
                name = answer.read(MAX_BYTES).decode().rpartition("/")[2]
        except (OSError, http.client.HTTPException, UnicodeDecodeError):
            return None
        if answer.status == http.client.OK:
            return name if key == "region" else name.rpartition("-")[0]
    return None


def bucket_region(location: GcsLocation, emulator_host: str | None) -> str | None:
    """Return the region of a bucket; None if it has several, or may not be asked for (storage.buckets.get)."""
    limits = TransferLimits(max_attempts=1, outage_s=0.0)
    try:
        with (
            closing(GcsTransport(location, emulator_host, limits)) as transport,
            transport.get("", {"fields": "location,locationType"}, {}) as response,
        ):
            bucket = json.loads(response.read(MAX_BYTES))
    except (ServiceError, TransientFault, ValueError):
        return None
    return str(bucket["location"]).lower() if bucket.get("locationType", "region") == "region" else None
