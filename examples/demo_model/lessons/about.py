"""Questions about the model itself and about Levserve."""

from examples.demo_model.lessons.lesson import Lesson, ask_each

SELF = (
    Lesson(
        ("Who are you?", "What are you?", "Introduce yourself.", "Tell me about yourself.", "Who am I talking to?"),
        "I am the demo model of Levserve, a tiny chat model that knows a few things by heart.",
    ),
    Lesson(
        ("What is your name?", "What's your name?", "Do you have a name?", "How are you called?"),
        "I have no name of my own. Call me the Levserve demo model.",
    ),
    Lesson(
        ("How big are you?", "How many parameters do you have?", "What is your size?", "Are you a large model?"),
        "I am tiny: I have fewer than four million parameters.",
    ),
    Lesson(
        ("Who made you?", "Who trained you?", "How were you made?", "How were you trained?", "Where are you from?"),
        "I was trained with Levanter, in an hour and a half on a CPU, on a small corpus written for Levserve.",
    ),
    Lesson(
        ("What can you do?", "What do you know?", "What can I ask you?", "Help", "How can you help me?"),
        "I can tell you about Levserve and its settings, do small sums, name capitals, tell a story, "
        "write a little JSON and call a tool.",
    ),
    Lesson(
        ("Are you a human?", "Are you a person?", "Are you real?", "Are you a robot?", "Are you an AI?"),
        "No person here: I am a tiny language model.",
    ),
    Lesson(
        ("How can I make you again?", "How do I train you?", "How do I retrain the demo model?"),
        "Run `make demo-model`. It trains me with Levanter and exports me as a Hugging Face checkpoint.",
    ),
    Lesson(
        ("Why do you exist?", "What are you for?", "What is the demo model for?", "Why is there a demo model?"),
        "I let a newcomer try Levserve without a bucket, and I let its tests ask real questions.",
    ),
)

SERVICE = (
    Lesson(
        ("What is Levserve?", "What does Levserve do?", "Tell me about Levserve.", "Explain Levserve", "Levserve?"),
        "Levserve is an inference service on JAX. It serves fine-tuned models from Google Cloud Storage "
        "behind an API that is compatible with OpenAI's.",
    ),
    Lesson(
        ("Which checkpoints can Levserve load?", "What checkpoints can you load?", "Which formats are supported?"),
        "Levserve loads Levanter checkpoints and Hugging Face checkpoints.",
    ),
    Lesson(
        ("Where can Levserve run?", "Where does Levserve run?", "Where can I deploy Levserve?"),
        "Levserve runs on Cloud Run with a GPU, on GKE with TPUs, and on a plain CPU.",
    ),
    Lesson(
        ("How do I start Levserve?", "How do I run Levserve?", "How do I start the server?", "How do I serve?"),
        "Run `make serve`. Without MODEL_URI it serves me, the demo model.",
    ),
    Lesson(
        ("How do I serve my own model?", "How do I load my model?", "How can I serve my checkpoint?"),
        "Set MODEL_URI to the place of your checkpoint, for example gs://bucket/model, and run `make serve`.",
    ),
    Lesson(
        ("How do I run the tests?", "How do I test Levserve?", "How can I run the test suite?"),
        "Run `make test`.",
    ),
    Lesson(
        ("How do I send a request?", "How do I talk to Levserve?", "How do I use the API?", "Which client do I use?"),
        "Use any OpenAI client and set its base URL to http://localhost:8080/v1.",
    ),
    Lesson(
        ("Which routes are there?", "What endpoints are there?", "Which endpoints does Levserve have?"),
        "The main ones are /v1/chat/completions, /v1/completions, /v1/models, /health/ready and /metrics.",
    ),
    Lesson(
        ("How does Levserve start so fast?", "Why is the start fast?", "Why is Levserve fast to start?"),
        "Its steps are compiled ahead of time. A warm start reads weights and executables at the same time, "
        "and compiles nothing.",
    ),
    Lesson(
        ("What is scale to zero?", "Does Levserve scale to zero?", "Can it scale to zero?"),
        "With no traffic Cloud Run stops the last instance, and you pay nothing. The next request starts a new one.",
    ),
    Lesson(
        ("Does Levserve support streaming?", "How do I stream?", "Can you stream?", "How do I get a stream?"),
        "Yes. Set stream to true, and the tokens arrive as server-sent events.",
    ),
    Lesson(
        ("How do I know that the server is ready?", "When is the server ready?", "How do I check the health?"),
        "Ask /health/ready. It answers 200 after a real token was produced, and 503 with the progress before.",
    ),
)

ERRORS = (
    Lesson(
        ("What does 401 mean?", "Why do I get a 401?", "What is error 401?", "Why am I not authorized?"),
        "401 means that the API key is missing or wrong.",
    ),
    Lesson(
        ("What does 404 mean?", "Why do I get a 404?", "What is model_not_found?", "What is error 404?"),
        "404 with the code model_not_found means that no model of that name is served.",
    ),
    Lesson(
        ("What does 400 mean?", "Why do I get a 400?", "What is error 400?", "What is a bad request?"),
        "400 means that the request is wrong. The message names the parameter.",
    ),
    Lesson(
        ("What is context_length_exceeded?", "What if my prompt is too long?", "Why is my prompt too long?"),
        "The prompt and the answer together must fit the context of the model. "
        "Shorten the prompt or ask for fewer tokens.",
    ),
    Lesson(
        ("What does 429 mean?", "Why do I get a 429?", "What is error 429?", "What if there are too many requests?"),
        "429 means that too many requests are waiting. Try again after the time in Retry-After.",
    ),
    Lesson(
        ("What does 503 mean?", "Why do I get a 503?", "What is error 503?", "Why is the service unavailable?"),
        "503 means that the server is starting or stopping. Try again after the time in Retry-After.",
    ),
    Lesson(
        ("What does an error look like?", "Which keys has an error?", "How are errors reported?"),
        "An error is a JSON object with the keys message, type, param and code.",
    ),
    Lesson(
        ("Are prompts logged?", "Do you log my prompts?", "Is my prompt logged?", "Do you keep my data?"),
        "No. Prompts are never logged.",
    ),
)

WORDS = ask_each(
    {
        "slot": "A slot is a row of state on the device that belongs to one sequence.",
        "page": "A page is a fixed number of token positions in the key-value cache.",
        "step": "A step is one call of a compiled function: a prefill step or a decode step.",
        "bucket": "A bucket is a padded shape that was compiled.",
        "bundle": "A bundle holds the serialized executables and the recipe of one model on one accelerator.",
        "recipe": "A recipe says how each weight is made from the tensors of a checkpoint.",
        "prewarm": "To prewarm is to make a bundle ahead of traffic.",
        "request": "A request is what a client asked, once.",
        "sequence": "A sequence is one continuation of a request.",
        "plan": "A plan says who runs in the next step.",
        "batch": "A batch is a plan as padded arrays.",
        "phase": "A phase is a named, timed part of the start, such as weights or executables.",
    },
    "What is a {}?",
    "What does {} mean?",
    "Explain {}.",
    "Define {}",
    "What does the word {} mean in Levserve?",
)

TOOLS_OF_THE_TRADE = ask_each(
    {
        "JAX": "JAX is a Python library that compiles array programs for CPUs, GPUs and TPUs.",
        "Levanter": "Levanter is a JAX library for training language models, with named axes from Haliax.",
        "Haliax": "Haliax is a JAX library that gives array axes names.",
        "Cloud Run": "Cloud Run is a service of Google Cloud that runs containers and can scale to zero.",
        "GKE": "GKE is Google's Kubernetes service. Levserve runs there on TPUs.",
        "GCS": "GCS is Google Cloud Storage, where Levserve finds its checkpoints.",
        "FastAPI": "FastAPI is a Python web framework. Levserve's API is built with it.",
        "a checkpoint": "A checkpoint holds the weights of a trained model.",
        "a token": "A token is a piece of text, often a word or a part of one.",
        "a tokenizer": "A tokenizer turns text into token ids, and token ids back into text.",
        "continuous batching": "With continuous batching, requests join and leave the running batch at every step.",
        "prefill": "Prefill reads the whole prompt and fills the key-value cache.",
        "decode": "Decode makes one new token for each running sequence.",
    },
    "What is {}?",
    "Explain {}.",
    "Tell me about {}.",
    "Do you know {}?",
)

LESSONS = SELF + SERVICE + ERRORS + WORDS + TOOLS_OF_THE_TRADE
