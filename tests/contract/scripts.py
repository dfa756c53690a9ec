"""What the scripted model answers to the clients under test, by the name of the script."""

from tests.contract.scripted_model import Call

KEY = "secret"
GREETING = "Hello from a script."
_WRITE = f"echo '{GREETING}' > hello.txt"
_WRITTEN = "The file is written."
_EDIT = f"""hello.txt
```
<<<<<<< SEARCH
=======
{GREETING}
>>>>>>> REPLACE
```
"""
_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": CITY}}

# The arguments come in the order of the tool's schema, to which a call is held.
SCRIPTS = {
    "aider": [_EDIT],
    "claude_code": [Call("Bash", {"command": _WRITE, "description": "Write a file"}), _WRITTEN],
    "cline": [Call("run_commands", {"commands": [_WRITE]}), _WRITTEN],
    "codex": [Call("exec_command", {"cmd": _WRITE}), _WRITTEN],
    "mini_swe_agent": [Call("bash", {"command": command}) for command in (_WRITE, "echo Two", "echo Three", _SUBMIT)],
    "opencode": [Call("write", {"content": f"{GREETING}\n", "filePath": "hello.txt"}), _WRITTEN],
    "pi": [Call("write", {"path": "hello.txt", "content": f"{GREETING}\n"}), _WRITTEN],
    "weather": [Call("weather", {"city": "Ulm"}), "It is 7 degrees."],
    "qwen_code": [Call("run_shell_command", {"command": _WRITE, "is_background": False}), _WRITTEN],
}
