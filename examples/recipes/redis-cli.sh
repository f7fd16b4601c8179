#!/usr/bin/env bash
# One call after another, from a shell.
set -euo pipefail

take() { redis-cli -p "$REDIS_PORT" --raw TB.CONSUME limit:vendor 8 50; }

for job in $(seq "$JOBS"); do
  while :; do
    { read -r allowed; read -r _; read -r wait_ms; } < <(take)
    if ((allowed == 0)); then
      sleep "$((wait_ms / 1000)).$(printf %03d "$((wait_ms % 1000))")"
      continue
    fi
    answer=$(curl -s -o /dev/null -w '%{http_code} %header{retry-after}' \
      -X POST -H "Idempotency-Key: $job" "$VENDOR/send")
    [[ $answer == 429* ]] || break
    # Seconds or a date. Without either: what you find fair.
    after=${answer#429 }
    if [[ $after == *,* ]]; then end=(UNTIL "$(date -d "$after" +%s)"); else end=("${after:-10}"); fi
    redis-cli -e -p "$REDIS_PORT" TB.PENALISE limit:vendor "${end[@]}" >/dev/null
  done
done
