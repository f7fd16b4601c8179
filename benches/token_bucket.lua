-- The usual token bucket in a script: level and time in a hash, the server's clock.
-- KEYS: the bucket. ARGV: capacity, tokens per second, tokens wanted.
local capacity, rate, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000

local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(bucket[1]) or capacity
local at = tonumber(bucket[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - at) * rate)

local allowed, wait = 0, 0
if tokens >= wanted then
  allowed, tokens = 1, tokens - wanted
else
  wait = math.ceil((wanted - tokens) / rate * 1000)
end

redis.call('HSET', KEYS[1], 'tokens', tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens) / rate * 1000) + 1000)
return { allowed, math.floor(tokens), wait, math.ceil((capacity - tokens) / rate * 1000) }
