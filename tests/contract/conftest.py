import pytest

from tests.contract.scripted_model import MODEL, write_scripted_model
from tests.contract.scripts import KEY, SCRIPTS
from tests.process import running_service


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="session")
def scripted_service(tmp_path_factory):
    """A service whose model answers by scripts, with room for the long prompts of coding agents."""
    folder = tmp_path_factory.mktemp("scripted")
    write_scripted_model(folder, SCRIPTS)
    with running_service(model_uri=folder, model_name=MODEL, api_key=KEY, max_prefill_tokens=2048) as service:
        yield service
