# /// script
# requires-python = ">=3.12,<3.13"
# dependencies = ["langchain-openai==1.7.3", "langchain-tests==1.1.9", "pytest", "pytest-asyncio"]
# ///
"""LangChain's own integration tests of a chat model; prints the names of those that passed and failed as JSON."""

import json
import sys

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

GIVEN = json.loads(sys.argv[1]) if len(sys.argv) == 2 else {}


class TestServedModel(ChatModelIntegrationTests):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        given = {"base_url": GIVEN["baseURL"], "api_key": GIVEN["apiKey"], "model": GIVEN["model"]}
        return {**given, "temperature": 0, "max_tokens": 256, "stream_usage": True, "max_retries": 0}

    @property
    def supports_json_mode(self):
        return True

    @property
    def enable_vcr_tests(self):
        return False


class Outcomes:
    def __init__(self):
        self.passed, self.failed = [], {}

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.failed[report.nodeid.rsplit("::", 1)[-1]] = str(report.longrepr)[-600:]
        elif report.passed and report.when == "call":
            self.passed.append(report.nodeid.rsplit("::", 1)[-1])


if __name__ == "__main__":
    outcomes = Outcomes()
    # This module again, as pytest imports it, would lack the argument.
    sys.modules["program"] = sys.modules["__main__"]
    flags = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--asyncio-mode=auto",
        "-o",
        "asyncio_default_test_loop_scope=session",
        "--import-mode=prepend",
        "--noconftest",
    ]
    pytest.main([__file__, *flags], plugins=[outcomes])
    print(json.dumps({"passed": outcomes.passed, "failed": outcomes.failed}))
