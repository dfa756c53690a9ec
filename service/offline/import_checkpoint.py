"""`levserve import`: copy a checkpoint from the Hub to a bucket through memory, without disk space.

Uploads are atomic and `config.json` is last, so a folder with a configuration is complete. An interrupted import
continues with the missing files.
"""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from fnmatch import fnmatch

from huggingface_hub import HfApi

from service.errors import CheckpointNotFound, SettingsError
from service.offline.hub_file import HubEntry, opened
from service.storage.gcs.store import BucketStore
from service.storage.hub_errors import hub_errors
from service.storage.location import GcsLocation, HubLocation, parse_location

logger = logging.getLogger(__name__)

SAFETENSORS = "*.safetensors"
IMPORTED = (
    SAFETENSORS,
    "*.json",
    "*.jinja",
    "*.model",
    "*.txt",
)  # excludes images and other frameworks' weights
PICKLED = ("pytorch_model*.bin", "*/pytorch_model.bin")  # imported if there are no safetensors
RECORD = "import.json"  # the imported commit
LAST = "config.json"
NUM_WORKERS = 4


def import_checkpoint(source: str, target: str, *, emulator_host: str | None) -> int:
    """Copy a checkpoint and return the exit code.

    Args:
        source: `hf://org/name[@revision]`.
        target: `gs://bucket/prefix`.
        emulator_host: STORAGE_EMULATOR_HOST.

    Raises:
        SettingsError: an address has the wrong kind, or the folder contains something else.
        CheckpointNotFound: the repository has no checkpoint.
        AccessDenied, TransferFailed: the Hub or the bucket refuses access, or a file does not match its digest.
    """
    hub, bucket = parse_location(source, "SOURCE"), parse_location(target, "TARGET")
    if not isinstance(hub, HubLocation) or hub.folder:
        where = "is a folder of a repository" if isinstance(hub, HubLocation) else "is not on the Hub"
        raise SettingsError("SOURCE", f"{source!r} {where}. Write hf://org/name or hf://org/name@revision.")
    if not isinstance(bucket, GcsLocation) or not bucket.prefix:
        raise SettingsError("TARGET", f"{target!r} is not a folder of a bucket. Write gs://bucket/folder.")
    commit, entries = _listed(hub)
    with closing(BucketStore(bucket, emulator_host=emulator_host)) as store:
        present = _present(store, hub, commit)
        missing = [entry for entry in entries if entry.name not in present]
        logger.info(
            "importing", extra={"commit": commit, "files": len(missing), "bytes": sum(e.size_bytes for e in missing)}
        )

        def copy(entry: HubEntry) -> None:
            with opened(hub.uri, hub.repo, commit, entry) as stream:
                store.write(entry.name, stream, replaces=False)
            logger.info("imported", extra={"file": entry.name, "bytes": entry.size_bytes})

        if not present:
            record = json.dumps({"source": f"hf://{hub.repo}", "commit": commit}).encode()
            store.write(RECORD, record, replaces=False)
        with ThreadPoolExecutor(NUM_WORKERS, thread_name_prefix="import") as pool:
            list(pool.map(copy, [entry for entry in missing if entry.name != LAST]))
        for entry in missing:
            if entry.name == LAST:
                copy(entry)
    logger.info("import complete", extra={"uri": bucket.uri, "commit": commit})
    return 0


def _listed(hub: HubLocation) -> tuple[str, list[HubEntry]]:
    with hub_errors(hub.uri, hub.repo, hub.revision, "listing"):
        info = HfApi().model_info(hub.repo, revision=hub.revision, files_metadata=True)
    entries = [
        HubEntry(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None, file.blob_id)
        for file in info.siblings or ()
    ]
    is_safe = any(fnmatch(entry.name, SAFETENSORS) for entry in entries)
    patterns = IMPORTED if is_safe else (*IMPORTED, *PICKLED)
    entries = [entry for entry in entries if any(fnmatch(entry.name, pattern) for pattern in patterns)]
    if info.sha is None or LAST not in {entry.name for entry in entries}:
        raise CheckpointNotFound(hub.uri, f"the repository has no {LAST}.")
    return info.sha, entries


def _present(store: BucketStore, hub: HubLocation, commit: str) -> dict[str, int]:
    present = store.list("")
    record = json.loads(store.read(RECORD) or b"{}") if RECORD in present else {}
    if present and record != {"source": f"hf://{hub.repo}", "commit": commit}:
        content = f"{record['source']} at {record['commit']}" if record else "files of another origin"
        reason = f"{store.uri} contains {content}, not hf://{hub.repo} at {commit}. Import to a new folder."
        raise SettingsError("TARGET", reason)
    return present
