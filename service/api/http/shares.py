"""Fair admission between API keys: a key that was refused below its share gets freed capacity first.

A request that finds no room is refused rather than queued, so a key whose clients keep every place taken would keep all
others out for ever. A refusal below the key's share is therefore a claim: until it comes again, or has had the time
to, keys at or above their shares leave room for it. Without claims, one key may use the whole cap.
"""

from collections import deque
from collections.abc import Mapping

# Time beyond Retry-After in which a client that was refused is expected again.
GRACE_S = 2.0
# Of one key; more claims than this would not let it in sooner.
MAX_CLAIMS = 64


class Shares:
    """The claims on one cap. Keys go by their names, and times are of one clock, in seconds."""

    def __init__(self) -> None:
        self._claims: dict[str, deque[tuple[float, int]]] = {}  # ends and amounts, the oldest first; never empty

    def claim(self, key: str, amount: int, end_s: float) -> None:
        """Note that a request was refused, and until when it is expected again."""
        self._claims.setdefault(key, deque(maxlen=MAX_CLAIMS)).append((end_s + GRACE_S, amount))

    def fulfil(self, key: str) -> None:
        """Note that a request was let in, which ends the oldest claim of its key."""
        if claims := self._claims.get(key):
            claims.popleft()
        self._sweep(0.0)

    def reserved(
        self, key: str, held: Mapping[str, int], weights: Mapping[str, float], limit: int, now_s: float
    ) -> int:
        """Return how much of a cap a request of a key must leave to others.

        Args:
            key: of the request.
            held: what each key holds of the cap.
            weights: of all keys that hold or claim something, and of this one.
            limit: the cap.
            now_s: the time.
        """
        self._sweep(now_s)
        if not self._claims.keys() - {key}:
            return 0
        active = {name for name, amount in held.items() if amount} | self._claims.keys() | {key}
        per_weight = limit / sum(weights[name] for name in active)
        left = {name: weights[name] * per_weight - held.get(name, 0) for name in active}  # of their shares
        if left[key] > 0:
            return 0
        claimed = {name: sum(amount for _, amount in claims) for name, claims in self._claims.items()}
        return sum(min(claimed[name], int(max(1, left[name]))) for name in claimed if name != key and left[name] > 0)

    def _sweep(self, now_s: float) -> None:
        for name in list(self._claims):
            claims = self._claims[name]
            while claims and claims[0][0] <= now_s:
                claims.popleft()
            if not claims:
                del self._claims[name]
