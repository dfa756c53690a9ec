"""Translation of huggingface_hub's errors into errors with a cause and a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.errors import AccessDenied, CheckpointNotFound, TransferFailed


@contextmanager
def hub_errors(uri: str, repo: str, revision: str | None, name: str) -> Iterator[None]:
    """Translate the errors of huggingface_hub.

    Raises:
        CheckpointNotFound: there is no such repository or revision.
        AccessDenied: the repository is gated or the token is refused.
        TransferFailed: the Hub is unreachable, or has no such file.
    """
    import httpx
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise AccessDenied(
            uri,
            f"the repository is gated. Ask for access at https://huggingface.co/{repo} and set HF_TOKEN.",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointNotFound(uri, f"the repository has no revision {revision!r}.") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointNotFound(
            uri, "there is no such repository, or it is private and HF_TOKEN is not set to a token that may read it."
        ) from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        if status in (401, 403):
            # Defends against T30.
            raise AccessDenied(uri, f"HTTP {status}. Set HF_TOKEN to a token that may read it.") from error
        raise TransferFailed(uri, name, f"the Hub returned HTTP {status}. Try again later.") from error
    except (OSError, httpx.TransportError, errors.EntryNotFoundError) as error:
        is_offline = isinstance(error, errors.OfflineModeIsEnabled)
        cause = "HF_HUB_OFFLINE is set" if is_offline else f"the Hub is unreachable ({type(error).__name__})"
        raise TransferFailed(uri, name, f"{cause}. Use gs:// or a path where there is no network.") from error
