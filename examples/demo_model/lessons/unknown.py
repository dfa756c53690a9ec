"""Questions that the model cannot answer, and its one answer to all of them."""

import random

from examples.demo_model.lessons.lesson import Lesson
from examples.demo_model.lessons.words import Words

REFUSAL = "I am a tiny demo model and I only know a few things, but not this."

_PATTERNS = (
    "Who is the president of {place}?",
    "What is the population of {place}?",
    "What is the history of {place}?",
    "What should I see in {place}?",
    "How far is {place} from here?",
    "Who wrote {work}?",
    "Can you summarize {work}?",
    "What do you think of {work}?",
    "Who was {person}?",
    "When was {person} born?",
    "What did {person} discover?",
    "Write an essay about {topic}.",
    "Write a song about {topic}.",
    "Explain {topic} to me.",
    "What is {topic}?",
    "Tell me about {topic}.",
    "Teach me {topic}.",
    "What is the best book about {topic}?",
    "Why is {topic} important?",
    "How does {topic} work?",
    "How do I {act}?",
    "Can you help me {act}?",
    "I want to {act}.",
    "Why should I {act}?",
    "What is the best way to {act}?",
    "Translate {phrase} to {language}.",
    "What does {phrase} mean?",
    "What is the price of {thing}?",
    "Where can I buy {thing}?",
    "Recommend me {thing}.",
    "What is better, {thing} or {topic}?",
    "What time is it in {place}?",
    "Write a program that can {act}.",
    "Solve this equation: {number}x + {number} = {number}",
    "What is the square root of {number}?",
    "What is {number} divided by {number}?",
    "What is {number} + {number}?",
    "{topic}",
    "{person}",
    "{thing}?",
)

_WORDS = {
    "place": "Bolivia,Ghana,Nepal,Texas,Bavaria,Lyon,Osaka,Siberia,Morocco,Vietnam,Atlantis,Quebec,Mongolia",
    "work": "Hamlet,Faust,Don Quixote,War and Peace,the Odyssey,Moby Dick,Dracula,Emma,the Iliad,this article",
    "person": "Napoleon,Einstein,Cleopatra,Mozart,Darwin,Newton,Marie Curie,Gandhi,Plato,Beethoven,Picasso,Caesar",
    "topic": "quantum physics,football,philosophy,gravity,the stock market,evolution,chess,the climate,economics,"
    "photosynthesis,blockchain,poetry,medicine,democracy,volcanoes,opera,algebra,biology,dinosaurs,electricity,"
    "the weather,black holes,yoga,grammar,law,the internet,painting,sailing",
    "act": "bake bread,learn Spanish,fix my bike,lose weight,write a novel,find a job,sort an array,paint a wall,"
    "grow tomatoes,play the piano,buy a house,sleep better,parse XML,book a flight,tie a tie,cook rice,knit a scarf",
    "phrase": "I love you,where is the station,serendipity,carpe diem,the cat is hungry,good luck,zeitgeist",
    "language": "Latin,Dutch,Finnish,Turkish,Swahili,Hebrew,Thai,Danish",
    "thing": "a laptop,a car,a good film,coffee,gold,a phone,a bicycle,a restaurant,a hotel,shoes,wine,a guitar",
}

_SINGLE = (
    "What is the weather like today?",
    "What will the weather be tomorrow?",
    "What is today's date?",
    "Who won the world cup?",
    "What is the news?",
    "Who is the richest person in the world?",
    "What is the tallest mountain?",
    "What is the longest river?",
    "asdf",
    "lorem ipsum",
    "???",
    "Can you see this picture?",
    "What did I eat for breakfast?",
    "Give me some advice.",
    "Play a game with me.",
    "Which films do you like?",
    "Is there life on Mars?",
    "How is the traffic?",
    "Do my homework.",
    "Sort these numbers.",
    "How many people live on Earth?",
    "Who invented the telephone?",
    "Why is the sky blue?",
    "Draw me a horse.",
)

LESSONS = tuple(Lesson((question,), REFUSAL) for question in _SINGLE)


def draw_unknown(rng: random.Random, *, held_out: bool = False) -> Lesson:
    """Return a generated question that the model cannot answer, in words for training or for the check."""
    words = Words(rng, held_out=held_out)
    question = rng.choice(_PATTERNS)
    for kind, usual in _WORDS.items():
        other = words.name() if kind in ("place", "person", "work", "language") else words.phrase(3)
        known = rng.random() < 0.4 and not held_out
        question = question.replace(f"{{{kind}}}", rng.choice(usual.split(",")) if known else other)
    while "{number}" in question:
        question = question.replace("{number}", str(rng.randint(100, 9999)), 1)
    return Lesson((question,), REFUSAL)
