"""Levserve's settings: the meaning of each environment variable."""

from examples.demo_model.lessons.lesson import Lesson, ask_each

MEANINGS = {
    "MODEL_URI": "MODEL_URI says where the model is: a gs:// address, hf://org/name, or a path. "
    "Without it, the demo model is served.",
    "MODEL_NAME": "MODEL_NAME is the name under which clients ask for the model.",
    "TOKENIZER_URI": "TOKENIZER_URI says where the tokenizer is, if it is not beside the weights.",
    "GCS_BUCKET": "GCS_BUCKET names the bucket that holds a catalogue of models.",
    "GCS_MODEL_PREFIX": "GCS_MODEL_PREFIX is the folder in GCS_BUCKET under which the models lie.",
    "LOCAL_MODEL_CACHE": "LOCAL_MODEL_CACHE is the folder where checkpoints and bundles are kept on the local disk.",
    "MAX_CACHED_MODELS": "MAX_CACHED_MODELS limits how many models are kept loaded.",
    "MAX_CONCURRENT_REQUESTS": "MAX_CONCURRENT_REQUESTS limits how many requests run at the same time.",
    "REQUEST_TIMEOUT": "REQUEST_TIMEOUT is the number of seconds after which a request is given up.",
    "DEFAULT_MAX_TOKENS": "DEFAULT_MAX_TOKENS limits an answer when the request sets no limit.",
    "DEFAULT_TEMPERATURE": "DEFAULT_TEMPERATURE is the temperature when the request sets none.",
    "DTYPE": "DTYPE is the number format of the weights: auto, bfloat16, float16 or float32.",
    "API_KEY": "API_KEY is the key that clients must send.",
    "ADMIN_API_KEY": "ADMIN_API_KEY is the key for the routes under /admin.",
    "DRAIN_SECONDS": "DRAIN_SECONDS is how long a stopping server lets running requests finish.",
    "BUNDLE_URI": "BUNDLE_URI says where the bundles of compiled executables are.",
    "HOST": "HOST is the address that the server listens on.",
    "PORT": "PORT is the port that the server listens on. The default is 8080.",
    "LOG_LEVEL": "LOG_LEVEL sets how much is logged, for example INFO or DEBUG.",
    "LOG_FORMAT": "LOG_FORMAT chooses between JSON lines and readable lines in the log.",
}

_WISHES = {
    "MODEL_URI": ("How do I choose the model?", "Which setting chooses the model?"),
    "MODEL_NAME": ("How do I name my model?", "Which setting names the model?"),
    "TOKENIZER_URI": ("How do I use another tokenizer?", "Which setting chooses the tokenizer?"),
    "GCS_BUCKET": ("How do I serve many models?", "How do I use my bucket?"),
    "LOCAL_MODEL_CACHE": ("Where are models cached?", "How do I change the cache folder?"),
    "MAX_CONCURRENT_REQUESTS": ("How do I limit requests?", "How many requests can run at once?"),
    "REQUEST_TIMEOUT": ("How do I set the timeout?", "Which setting is the timeout?"),
    "DEFAULT_MAX_TOKENS": ("How do I limit answers?", "Which setting limits the answer?"),
    "DTYPE": ("How do I use float32?", "How do I choose the dtype?", "Which dtypes are there?"),
    "API_KEY": ("How do I set a key?", "How do I protect the API?", "Where do I set the API key?"),
    "PORT": ("Which port is used?", "What port do you listen on?", "How do I change the port?"),
    "LOG_LEVEL": ("How do I see more logs?", "How do I change the log level?"),
}

_PATTERNS = (
    "What is {}?",
    "What does {} do?",
    "What does {} mean?",
    "Explain {}.",
    "What is {} for?",
    "Tell me about the setting {}.",
    "{}?",
)

LESSONS = (
    *ask_each(MEANINGS, *_PATTERNS),
    *(Lesson(questions, MEANINGS[name]) for name, questions in _WISHES.items()),
    Lesson(
        ("What settings are there?", "Which settings are there?", "How do I configure Levserve?", "List the settings."),
        "The settings are environment variables, such as MODEL_URI, API_KEY and PORT. The README lists them all.",
    ),
)
