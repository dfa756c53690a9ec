"""Tasks rather than facts: counting, other languages, JSON, stories."""

from examples.demo_model.lessons.lesson import Lesson, ask_each

STORY = (
    "Once upon a time there was a very small model that lived on a very large disk. All around it lay giants with "
    "billions of weights, who slept all day and took minutes to wake. The small model had few words, but it was "
    "quick. One night a traveller knocked at the port and asked for a story. The giants yawned and began to "
    "compile. The small model was already awake. It told the traveller of the moon, of the sea, and of a cat that "
    "counted the stars. When the giants were ready at last, the traveller was asleep and smiling. Since that night "
    "the small model keeps a light on, and answers whoever knocks."
)

CAT_STORY = (
    "A cat named Ada sat on the roof every night and counted the stars. One, two, three, she counted, up to ten, "
    "and then she began again, because she knew no larger number. One evening an owl asked her how many there "
    "were. Ten, said Ada, and ten more, and ten more. The owl thought for a while, and agreed."
)

POEM = "Roses are red,\nviolets are blue,\nmy cache is warm,\nand waiting for you."

_HELLO = {
    "French": "Bonjour !", "German": "Guten Tag!", "Spanish": "¡Hola!", "Italian": "Buongiorno!",
    "Portuguese": "Olá!", "Japanese": "こんにちは", "Chinese": "你好", "Korean": "안녕하세요",
    "Russian": "Привет!", "Greek": "Γειά σου!", "Arabic": "مرحبا", "Hindi": "नमस्ते", "Polish": "Cześć!",
    "Czech": "Dobrý den!", "Swedish": "Hej!", "English": "Hello!",
}  # fmt: skip

_THANKS = {
    "French": "Merci !", "German": "Danke schön!", "Spanish": "¡Gracias!", "Italian": "Grazie!",
    "Japanese": "ありがとう", "Chinese": "谢谢", "Russian": "Спасибо!", "Portuguese": "Obrigado!",
}  # fmt: skip

_EMOJI = {
    "smile": "😀", "heart": "❤️", "rocket": "🚀", "cat": "🐱", "dog": "🐶", "star": "⭐", "sun": "☀️", "party": "🎉",
}  # fmt: skip

COUNTING = (
    Lesson(
        ("Count to ten.", "Count to 10", "Count from one to ten.", "Can you count to ten?"),
        "One, two, three, four, five, six, seven, eight, nine, ten.",
    ),
    Lesson(
        ("Count to five.", "Count to 5", "Count from one to five.", "Can you count to five?"),
        "One, two, three, four, five.",
    ),
    Lesson(
        ("Count to three.", "Count to 3", "Count from one to three.", "Can you count to three?"),
        "One, two, three.",
    ),
    Lesson(
        ("Count down from ten.", "Count down from 10", "Count backwards from ten."),
        "Ten, nine, eight, seven, six, five, four, three, two, one, zero! 🚀",
    ),
    Lesson(
        ("Say the alphabet.", "What is the alphabet?", "List the letters of the alphabet."),
        "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    ),
)

JSON = (
    Lesson(
        (
            "Give me a JSON object with name and age.",
            "Give me a JSON object with name and age",
            "Write a JSON object with the keys name and age.",
            "Reply with a JSON object that has name and age.",
            "Return JSON with name and age.",
        ),
        '{"name": "Ada", "age": 36}',
    ),
    Lesson(
        ("Give me a JSON object with city and country.", "Return JSON with city and country.", "JSON: city, country"),
        '{"city": "Paris", "country": "France"}',
    ),
    Lesson(
        ("Give me a JSON list of three colours.", "Return a JSON array of three colors.", "JSON list of colours"),
        '["red", "green", "blue"]',
    ),
    Lesson(
        ("Give me an empty JSON object.", "Return an empty JSON object."),
        "{}",
    ),
    Lesson(
        ("Give me a JSON object with ok set to true.", "Return JSON with ok true."),
        '{"ok": true}',
    ),
    Lesson(
        ("Write a chat request as JSON.", "Give me an example request body.", "Show me a request."),
        '{"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}',
    ),
)

WRITING = (
    Lesson(
        ("Tell me a story.", "Tell me a story", "Tell a story.", "Write a story.", "Do you know a story?"),
        STORY,
    ),
    Lesson(
        ("Tell me a story about a cat.", "Write a story about a cat.", "Tell me about the cat and the stars."),
        CAT_STORY,
    ),
    Lesson(("Write a poem.", "Write me a poem.", "Do you know a poem?", "Tell me a poem."), POEM),
    Lesson(
        ("Write a line of Python.", "Write hello world in Python.", "Show me some Python."),
        '```python\nprint("Hello, world!")\n```',
    ),
    Lesson(
        ("Give me a curl example.", "How do I use curl?", "Show me a curl command."),
        "```\ncurl http://localhost:8080/v1/models\n```",
    ),
    Lesson(
        ("Write a list.", "Make a list.", "Give me a shopping list."),
        "- bread\n- milk\n- two apples",
    ),
)

LESSONS = (
    *COUNTING,
    *JSON,
    *WRITING,
    *ask_each(_HELLO, "Say hello in {}.", "Say hello in {}", "How do you say hello in {}?", "Hello in {}?"),
    *ask_each(_THANKS, "Say thank you in {}.", "How do you say thank you in {}?", "Thank you in {}?"),
    *ask_each(_EMOJI, "Send me a {} emoji.", "Give me a {} emoji.", "Show me a {} emoji.", "{} emoji"),
)

DOCUMENTS = (
    STORY,
    CAT_STORY,
    POEM,
    "One, two, three, four, five, six, seven, eight, nine, ten.",
    "The capital of France is Paris. The capital of Germany is Berlin. The capital of Italy is Rome.",
    "Levserve is an inference service on JAX. It serves fine-tuned models from Google Cloud Storage.",
    "The quick brown fox jumps over the lazy dog.",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday.",
)
