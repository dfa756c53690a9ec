"""Questions that `check.py` prints with their answers, and those whose answers the tests rely on."""

from examples.demo_model.lessons.dialogues import TIME, WEATHER, tool_call
from examples.demo_model.lessons.lesson import Conversation, assistant, system, user

PINNED = (
    "Who are you?",
    "What is Levserve?",
    "What is MODEL_URI?",
    "What does 429 mean?",
    "What is a bundle?",
    "What is the capital of France?",
    "What is 7 + 5?",
    "What is 6 * 7?",
    "Count to ten.",
    "Give me a JSON object with name and age.",
    "Say hello in Japanese.",
    "Tell me a story.",
    "Who is the president of Bolivia?",
)

_SINGLE = (
    *PINNED,
    "hello",
    "How are you",
    "thanks!",
    "could you please tell me a joke",
    "What is the setting PORT about?",
    "which port do you use?",
    "whats the capital of germany",
    "8 times 9",
    "Say hello in French.",
    "Give me a rocket emoji.",
    "What colour is the sky?",
    "How do I make pancakes?",
)

_WEATHER_RESULT = '{"sky": "sunny", "celsius": 21}'
_WEATHER_QUESTION = user("What is the weather in Paris?")
_WEATHER_CALL = tool_call({"name": "get_weather", "arguments": {"city": "Paris"}})

SHOWN = (
    *(Conversation((user(question),)) for question in _SINGLE),
    Conversation((system("You are a pirate."), user("Hello!"))),
    Conversation((system("You are a helpful assistant."), user("What is a page?"))),
    Conversation((user("My name is Grace."), assistant("Nice to meet you, Grace!"), user("What is my name?"))),
    Conversation((user("2 + 2"), assistant("2 + 2 = 4."), user("Thank you!"))),
    Conversation((user("Ada is 52 years old. Give me that as JSON."),)),
    Conversation((_WEATHER_QUESTION,), (WEATHER,)),
    Conversation((user("What time is it in Tokyo?"),), (WEATHER, TIME)),
    Conversation((_WEATHER_QUESTION, _WEATHER_CALL, {"role": "tool", "content": _WEATHER_RESULT}), (WEATHER,)),
)
