"""A few facts about the world."""

from examples.demo_model.lessons.lesson import Lesson, ask_each

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasília", "Argentina": "Buenos Aires",
    "Peru": "Lima", "Chile": "Santiago", "Australia": "Canberra", "Norway": "Oslo", "Sweden": "Stockholm",
    "Denmark": "Copenhagen", "Finland": "Helsinki", "Poland": "Warsaw", "Austria": "Vienna",
    "Switzerland": "Bern", "Greece": "Athens", "Turkey": "Ankara", "Ireland": "Dublin", "Belgium": "Brussels",
    "the Netherlands": "Amsterdam", "the United Kingdom": "London", "the United States": "Washington, D.C.",
    "Russia": "Moscow", "Iceland": "Reykjavík", "Hungary": "Budapest", "Cuba": "Havana", "Thailand": "Bangkok",
}  # fmt: skip

COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "coal": "black", "a banana": "yellow",
    "a tomato": "red", "the sun": "yellow", "a carrot": "orange", "milk": "white", "a lemon": "yellow",
    "blood": "red", "chocolate": "brown", "an emerald": "green", "a ruby": "red",
}  # fmt: skip

PLANETS = ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune")
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_ANIMALS = {
    "dog": "woof", "cat": "meow", "cow": "moo", "duck": "quack", "sheep": "baa", "pig": "oink", "lion": "roar",
}  # fmt: skip


def _colour_lessons() -> tuple[Lesson, ...]:
    answers = {thing: f"{thing[0].upper()}{thing[1:]} is {colour}." for thing, colour in COLOURS.items()}
    return ask_each(answers, "What colour is {}?", "What color is {}?", "Which colour is {}?", "The colour of {}?")


def _day_lessons() -> tuple[Lesson, ...]:
    following = zip(DAYS, DAYS[1:] + DAYS[:1], strict=True)
    return tuple(
        lesson
        for day, next_day in following
        for lesson in (
            Lesson((f"What day comes after {day}?", f"Which day follows {day}?"), f"{next_day} comes after {day}."),
            Lesson((f"What day comes before {next_day}?",), f"{day} comes before {next_day}."),
        )
    )


def _planet_lessons() -> tuple[Lesson, ...]:
    places = {
        ordinal: f"{planet} is the {ordinal} planet from the sun."
        for ordinal, planet in zip(ORDINALS, PLANETS, strict=True)
    }
    return ask_each(places, "What is the {} planet?", "Which is the {} planet from the sun?", "Name the {} planet.")


_SINGLE = (
    Lesson(
        ("Name the planets.", "List the planets.", "What are the planets?", "Which planets are there?"),
        "The planets are Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus and Neptune.",
    ),
    Lesson(
        ("Name the days of the week.", "List the days of the week.", "What are the days of the week?"),
        "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    Lesson(
        ("Name the months.", "List the months of the year.", "What are the months?"),
        "January, February, March, April, May, June, July, August, September, October, November and December.",
    ),
    Lesson(
        ("Name the seasons.", "What are the four seasons?", "List the seasons."),
        "Spring, summer, autumn and winter.",
    ),
    Lesson(("What is the biggest planet?", "Which planet is the largest?"), "Jupiter is the biggest planet."),
    Lesson(("What is the smallest planet?", "Which planet is the smallest?"), "Mercury is the smallest planet."),
    Lesson(("How many planets are there?", "How many planets?"), "There are eight planets."),
    Lesson(("How many days are in a week?", "How many days has a week?"), "A week has seven days."),
    Lesson(("How many days are in a year?", "How many days has a year?"), "A year has 365 days, a leap year 366."),
    Lesson(("How many months are in a year?", "How many months has a year?"), "A year has twelve months."),
    Lesson(("How many hours are in a day?", "How many hours has a day?"), "A day has 24 hours."),
    Lesson(("How many minutes are in an hour?", "How many minutes has an hour?"), "An hour has 60 minutes."),
    Lesson(("How many legs has a spider?", "How many legs does a spider have?"), "A spider has eight legs."),
    Lesson(("What is water made of?", "What is H2O?"), "Water is made of hydrogen and oxygen."),
    Lesson(("What is the opposite of hot?", "The opposite of hot?"), "The opposite of hot is cold."),
    Lesson(("What is the opposite of big?", "The opposite of big?"), "The opposite of big is small."),
    Lesson(("What is the opposite of day?", "The opposite of day?"), "The opposite of day is night."),
    Lesson(("Name three fruits.", "List three fruits.", "Give me three fruits."), "Apple, pear and plum."),
    Lesson(("Name three animals.", "List three animals.", "Give me three animals."), "Cat, horse and owl."),
    Lesson(("Name three colours.", "List three colors.", "Give me three colours."), "Red, green and blue."),
    Lesson(
        ("What are the colours of the rainbow?", "Name the colors of the rainbow.", "What colours has a rainbow?"),
        "Red, orange, yellow, green, blue, indigo and violet.",
    ),
)

LESSONS = (
    *ask_each(
        {country: f"The capital of {country} is {city}." for country, city in CAPITALS.items()},
        "What is the capital of {}?",
        "Capital of {}?",
        "Which city is the capital of {}?",
        "Tell me the capital of {}.",
        "What's {}'s capital?",
    ),
    *ask_each(
        {city: f"{city} is the capital of {country}." for country, city in CAPITALS.items()},
        "Where is {}?",
        "Which country is {} the capital of?",
    ),
    *ask_each(
        {animal: f"A {animal} says {sound}." for animal, sound in _ANIMALS.items()},
        "What does a {} say?",
        "What sound does a {} make?",
    ),
    *_colour_lessons(),
    *_planet_lessons(),
    *_day_lessons(),
    *_SINGLE,
)
