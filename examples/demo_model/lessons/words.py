"""Words and values of which functions, objects and questions about them are made.

A word that `is_held_out` is drawn in no training. Verbs, nouns, names and texts of the check are such words, so that
what is right there has been copied from the question, and not been known.
"""

import random
import zlib

VERBS = (
    "add", "adjust", "archive", "arrange", "assign", "block", "book", "build", "buy", "calculate", "cancel", "change",
    "check", "choose", "clean", "close", "compare", "copy", "count", "create", "delete", "deliver", "describe", "draw",
    "estimate", "export", "fetch", "fill", "find", "fix", "follow", "get", "import", "inspect", "invite", "join",
    "list", "load", "lock", "look_up", "make", "mark", "measure", "merge", "move", "notify", "open", "order", "paint",
    "pause", "pay", "plan", "play", "print", "publish", "query", "read", "record", "register", "remove", "rename",
    "rent", "repair", "replace", "report", "reserve", "reset", "resize", "restart", "return", "save", "scan",
    "schedule", "search", "select", "sell", "send", "set", "share", "show", "sign", "sort", "start", "stop", "store",
    "submit", "test", "track", "translate", "update", "upload", "verify", "visit", "watch", "weigh", "write",
)  # fmt: skip

NOUNS = (
    "account", "actor", "airport", "alarm", "album", "animal", "answer", "apartment", "apple", "archive", "article",
    "artist", "balance", "ball", "basket", "battery", "beach", "bicycle", "bill", "bird", "board", "boat", "bonus",
    "book", "bottle", "bowl", "box", "bridge", "budget", "building", "button", "cable", "cake", "calendar", "camera",
    "candle", "card", "carpet", "castle", "chair", "channel", "chapter", "cinema", "class", "clock", "cloud", "coat",
    "coffee", "coin", "comment", "company", "concert", "contact", "contract", "copy", "course", "customer", "cup",
    "delivery", "desk", "device", "dinner", "doctor", "document", "door", "dress", "drink", "driver", "engine",
    "event", "exam", "factory", "family", "farm", "fence", "festival", "file", "film", "flag", "flight", "floor",
    "flower", "folder", "forest", "fridge", "friend", "fruit", "game", "garage", "garden", "gift", "glass", "group",
    "guest", "hall", "hammer", "harbor", "hat", "hill", "horse", "hospital", "hotel", "house", "image", "invoice",
    "island", "item", "jacket", "jar", "job", "journey", "juice", "key", "kitchen", "knife", "ladder", "lake", "lamp",
    "laptop", "leaf", "lesson", "letter", "library", "light", "machine", "magazine", "mail", "map", "market", "match",
    "meal", "medal", "meeting", "member", "menu", "message", "meter", "mill", "mirror", "mountain", "movie", "museum",
    "needle", "news", "note", "number", "office", "orange", "orchard", "package", "page", "painting", "paper", "park",
    "parcel", "party", "passenger", "patient", "payment", "pencil", "person", "phone", "photo", "piano", "picture",
    "pillow", "pipe", "plane", "plant", "plate", "player", "pocket", "poem", "policy", "pool", "post", "printer",
    "product", "profile", "project", "pump", "puzzle", "quote", "radio", "rate", "recipe", "record", "report",
    "restaurant", "ring", "river", "road", "robot", "roof", "room", "route", "sample", "school", "score", "screen",
    "seat", "sensor", "server", "shelf", "ship", "shirt", "shoe", "shop", "song", "speaker", "spoon", "stamp",
    "station", "stock", "stone", "story", "street", "student", "subject", "table", "task", "teacher", "team", "tent",
    "ticket", "tool", "tower", "town", "toy", "train", "tree", "trip", "truck", "user", "valley", "vehicle", "video",
    "village", "visitor", "wall", "wallet", "watch", "website", "window", "winner", "worker", "zone",
)  # fmt: skip

TEXT_FIELDS = (
    "address", "author", "author_name", "body", "brand", "category", "city", "color", "company", "country", "currency",
    "customer", "customer_name", "department", "description", "destination", "driver", "email", "file_name",
    "first_name", "format", "from_city", "genre", "host", "keyword", "kind", "label", "language", "last_name",
    "location", "material", "message", "model", "mood", "name", "origin", "owner", "path", "person", "place",
    "product", "query", "reason", "recipient", "region", "room", "sender", "shape", "source", "status", "street",
    "style", "subject", "summary", "symbol", "target", "team", "term", "text", "ticker", "title", "to_city", "topic",
    "type", "unit", "user", "username", "venue", "word",
)  # fmt: skip
NUMBER_FIELDS = (
    "age", "amount", "budget", "capacity", "count", "day", "days", "depth", "discount", "distance", "duration",
    "floor", "height", "hours", "id", "index", "input", "length", "level", "limit", "max_results", "minutes", "month",
    "number", "order_id", "page", "pages", "points", "position", "price", "quantity", "radius", "rating", "rows",
    "score", "seats", "seconds", "size", "speed", "step", "temperature", "total", "user_id", "value", "volume",
    "weight", "width", "x", "y", "year", "a", "b", "n",
)  # fmt: skip
FLAG_FIELDS = (
    "active", "available", "dark_mode", "done", "enabled", "express", "fragile", "free", "is_gift", "is_open", "loud",
    "notify", "open", "paid", "private", "public", "recursive", "return_trip", "sorted", "urgent", "vegetarian",
    "verbose", "visible",
)  # fmt: skip
DATE_FIELDS = ("birthday", "date", "day", "deadline", "due_date", "end_date", "from", "start_date", "until", "when")
TIME_FIELDS = ("at", "end_time", "hour", "start", "start_time", "time", "wake_up_time")
LIST_FIELDS = ("authors", "colors", "guests", "ingredients", "items", "keywords", "names", "tags", "topics", "words")

_ONSETS = ("b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kl", "l", "m", "n", "p", "pr", "qu",
           "r", "s", "sh", "st", "t", "th", "tr", "v", "w", "y", "z", "")  # fmt: skip
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ea", "ie", "oo", "ou")
_ENDS = ("", "", "", "l", "m", "n", "nd", "r", "rk", "s", "st", "t", "x", "ck")
_FOREIGN = ("ä", "é", "ø", "ñ", "ç", "ü", "š", "ł", "å", "ï")
_WIDE = (
    "你好啊集团東京大学中文日本山川水火木金土人口手目田力学生先月年時会社株式语言世界上海北京文化海花春夏秋冬"
    "こんにちはありがとうさくらアイウエオカキクケコテストсветмирдомгородкнигαβγδεξπσλόγος안녕하세요서울한국"
)
_OTHER_WORDS = (
    "blue", "bright", "brown", "calm", "clear", "cold", "cool", "dark", "deep", "dry", "early", "fast", "fine", "fresh",
    "gentle", "gold", "golden", "good", "grand", "gray", "great", "green", "happy", "hidden", "high", "hot", "large",
    "last", "late", "little", "lost", "lucky", "new", "north", "old", "open", "pink", "plain", "pretty", "quick",
    "quiet", "rapid", "red", "rich", "royal", "secret", "sharp", "short", "silver", "simple", "small", "soft", "south",
    "strong", "sunny", "sweet", "tall", "tiny", "warm", "weekly", "west", "white", "wild", "winter", "yellow", "young",
    "about", "after", "again", "all", "and", "at", "before", "between", "by", "for", "from", "in", "into", "my", "near",
    "no", "not", "of", "on", "our", "over", "the", "their", "to", "under", "we", "with", "you", "your", "is", "are",
    "air", "art", "autumn", "bread", "butter", "cat", "cheese", "dog", "dream", "evening", "field", "fire", "fish",
    "friday", "gas", "heart", "history", "home", "honey", "iron", "king", "love", "milk", "monday", "moon", "morning",
    "music", "night", "ocean", "oil", "peace", "physics", "queen", "rain", "rice", "rose", "salt", "sea", "sky", "snow",
    "space", "spring", "star", "storm", "sugar", "summer", "sun", "sunday", "tea", "time", "today", "tomorrow", "water",
    "weather", "week", "wind", "wine", "wood", "work", "world",
)  # fmt: skip


def is_held_out(word: str) -> bool:
    """Return whether a word is kept for the check."""
    return zlib.crc32(word.lower().encode()) % 8 == 0


class Words:
    """Draws words and values, for training or, `held_out`, for the check."""

    def __init__(self, chosen: random.Random, *, held_out: bool = False) -> None:
        self.chosen, self._held_out = chosen, held_out

    def of(self, words: tuple[str, ...]) -> str:
        """Return one of some words."""
        return self.chosen.choice([word for word in words if is_held_out(word) is self._held_out])

    def made_up(self) -> str:
        """Return a word that is in no dictionary: some syllables, or in training also parts of known words."""
        chosen = self.chosen
        while True:
            if not self._held_out and chosen.random() < 0.5:
                word = self._piece() + self._piece()
            else:
                syllables = chosen.choice((1, 2, 2, 2, 3))
                parts = [chosen.choice(_ONSETS) + chosen.choice(_VOWELS) for _ in range(syllables)]
                word = "".join(parts) + chosen.choice(_ENDS)
            if chosen.random() < 0.06:
                place = chosen.randrange(len(word) + 1)
                word = word[:place] + chosen.choice(_FOREIGN) + word[place:]
            if len(word) > 2 and is_held_out(word) is self._held_out:
                return word

    def _piece(self) -> str:
        """Return a part of a known word, so that every token is copied somewhere."""
        word = self.of(self.chosen.choice((NOUNS, VERBS, TEXT_FIELDS, _OTHER_WORDS))).replace("_", "")
        begin = self.chosen.randrange(max(len(word) - 2, 1))
        return word[begin : begin + self.chosen.randint(2, 5)]

    def word(self) -> str:
        """Return a word, known or made up."""
        if self.chosen.random() < 0.4:
            return self.made_up()
        return self.of(self.chosen.choice((NOUNS, NOUNS, _OTHER_WORDS)))

    def name(self) -> str:
        """Return a word as names are written."""
        word = self.made_up() if self.chosen.random() < 0.8 else self.word()
        return word.capitalize()

    def phrase(self, most: int = 4) -> str:
        """Return some words."""
        return " ".join(self.word() for _ in range(self.chosen.randint(2, most)))

    def wide(self) -> str:
        """Return a text in other scripts than the Latin one."""
        return "".join(self.chosen.choice(_WIDE) for _ in range(self.chosen.randint(2, 8)))

    def text(self) -> str:
        """Return what a text field may hold."""
        chosen = self.chosen
        draws = {
            self.name: 34,
            lambda: f"{self.name()} {self.name()}": 18,
            self.word: 16,
            self.phrase: 12,
            lambda: f"{self.made_up()}@{self.word()}.{chosen.choice(('com', 'org', 'net', 'io'))}": 6,
            lambda: f"{self.made_up()[:2].upper()}-{chosen.randint(10, 9999)}": 6,
            lambda: f"{self.name()}, {self.made_up()[:2].upper()}": 5,
            self.wide: 3,
        }
        return chosen.choices(list(draws), list(draws.values()))[0]()

    def integer(self) -> int:
        """Return a number of one to five digits."""
        return self.chosen.randrange(10 ** self.chosen.choice((1, 1, 2, 2, 3, 4, 5)))

    def number(self) -> float:
        """Return a number with one or two decimals."""
        return round(self.chosen.uniform(0, 10 ** self.chosen.choice((1, 2, 3))), self.chosen.choice((1, 2)))

    def date(self) -> str:
        """Return a date of ISO 8601."""
        chosen = self.chosen
        return f"{chosen.randint(1950, 2049)}-{chosen.randint(1, 12):02}-{chosen.randint(1, 28):02}"

    def time(self) -> str:
        """Return a time of the day."""
        return f"{self.chosen.randint(0, 23):02}:{self.chosen.randint(0, 59):02}"
