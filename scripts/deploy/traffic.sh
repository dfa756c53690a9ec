#!/usr/bin/env bash
# Give a revision some traffic if its verdict is good; otherwise give all of it back to the stable one, and fail.
#
#   scripts/deploy/traffic.sh PERCENT
#
# Reads SERVICE, PROJECT, REGION, and STATE, the folder with the files revision, stable and verdict.
set -euo pipefail
service=$SERVICE flags=(--project="$PROJECT" --region="$REGION")
revision=$(cat "$STATE/revision") stable=$(cat "$STATE/stable") verdict=$(cat "$STATE/verdict")
look() {
  echo "Look further, or try again, with:"
  echo "  gcloud run services logs read $service ${flags[*]} --limit=200"
  echo "  gcloud run revisions describe $revision ${flags[*]}"
  echo "  gcloud run services update-traffic $service ${flags[*]} --to-revisions=$revision=100"
}
if [ "$verdict" != good ]; then
  gcloud run services update-traffic "$service" "${flags[@]}" --to-revisions="$stable=100"
  echo "Rolled back: $verdict. Traffic is where it was, on $stable."
  look
  exit 1
fi
[ "$1" != 0 ] || exit 0
gcloud run services update-traffic "$service" "${flags[@]}" --to-revisions="$revision=$1" || {
  gcloud run services update-traffic "$service" "${flags[@]}" --to-revisions="$stable=100" || true
  echo "Traffic could not be moved to $revision. Traffic is where it was, on $stable."
  look
  exit 1
}
echo "$revision has $1 % of the traffic."
