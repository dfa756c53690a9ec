"""Creation of the catalogue from the settings: a single model, MODELS_CONFIG, a folder or a bucket."""

from functools import partial

from service.catalogue.catalogue import Catalogue, NewestStep
from service.catalogue.entry import ListedModel, ModelEntry
from service.errors import SettingsError
from service.settings import Settings
from service.storage.location import HubLocation, Location, parse_location
from service.storage.source import Source, open_source
from service.storage.text_file import read_text_file


def one_model(uri: str, names: tuple[str, ...]) -> Catalogue:
    """Return the catalogue of a process that serves a single model, which is never evicted.

    Args:
        uri: the address of the checkpoint.
        names: the names that requests can use; the first is the model's id.
    """
    entry = ModelEntry(name=names[0], aliases=names[1:], uri=uri, is_preloaded=True, keeps_loaded=True)
    return Catalogue([entry])


def catalogue_of_settings(settings: Settings) -> Catalogue:
    """Create the catalogue of MODELS_CONFIG and CATALOGUE_URI (or GCS_BUCKET); `refresh` adds listed models.

    Raises:
        SettingsError: an address is malformed, or the file cannot be read or is invalid.
    """
    described: tuple[ModelEntry, ...] = ()
    if settings.models_config is not None:
        from service.catalogue.described import read_models

        described = read_models(_text(settings, settings.models_config), settings.models_config)
    if settings.catalogue_address is None:
        for entry in described:
            if not entry.uri and entry.base is None:
                message = f"the model {entry.name!r} needs a 'uri', since neither CATALOGUE_URI nor GCS_BUCKET is set."
                raise SettingsError("MODELS_CONFIG", message)
        return Catalogue(
            described,
            newest_step=_newest_step(settings),
            selected=settings.selected_models,
            has_slots=settings.max_loras > 0,
        )
    location = parse_location(settings.catalogue_address, "CATALOGUE_URI")
    if isinstance(location, HubLocation):
        raise SettingsError("CATALOGUE_URI", f"{location.uri!r} cannot be listed. Write gs://bucket/prefix or a path.")
    from service.catalogue.listing import list_models

    listing = partial(list_models, location, emulator_host=settings.storage_emulator_host)
    return Catalogue(
        described,
        uri=location.uri,
        listing=listing,
        newest_step=_newest_step(settings),
        read_base=partial(_read_base, settings),
        selected=settings.selected_models,
        has_slots=settings.max_loras > 0,
    )


def _read_base(settings: Settings, uri: str) -> str | None:
    from service.checkpoint.adapters.locate import locate_adapter

    def open_location(location: Location) -> Source:
        return open_source(
            location, cache_root=settings.local_model_cache, emulator_host=settings.storage_emulator_host
        )

    return locate_adapter(uri, open_location, "CATALOGUE_URI").config.base


def _newest_step(settings: Settings) -> NewestStep:
    """Return a function that lists a run in a bucket or folder."""

    def list_run(uri: str) -> ListedModel:
        from service.catalogue.listing import newest_step

        location = parse_location(uri, "MODELS_CONFIG")
        assert not isinstance(location, HubLocation), "refused while reading MODELS_CONFIG"
        return newest_step(location, emulator_host=settings.storage_emulator_host)

    return list_run


def _text(settings: Settings, uri: str) -> str:
    """Return the text of MODELS_CONFIG."""
    from service.catalogue.described import MAX_BYTES, VARIABLE

    return read_text_file(
        uri,
        VARIABLE,
        max_bytes=MAX_BYTES,
        cache_root=settings.local_model_cache,
        emulator_host=settings.storage_emulator_host,
    )
