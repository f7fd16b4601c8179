<?php
// One call after another, over phpredis.
$redis = new Redis();
$redis->connect('127.0.0.1', (int) getenv('REDIS_PORT'));

function call(Redis $redis, string $job): void
{
    for (;;) {
        [$allowed, , $wait_ms] = $redis->rawCommand('TB.CONSUME', 'limit:vendor', 8, 50);
        if (!$allowed) {
            usleep($wait_ms * 1000);
            continue;
        }
        $http = ['method' => 'POST', 'header' => "Idempotency-Key: $job", 'ignore_errors' => true];
        file_get_contents(getenv('VENDOR') . '/send', false, stream_context_create(['http' => $http]));
        // This variable is filled by PHP: the status line, then the fields.
        if (!str_contains($http_response_header[0], ' 429 ')) {
            return;
        }
        $after = preg_grep('/^retry-after:/i', $http_response_header);
        // Seconds here; a date goes after UNTIL, as Unix time.
        $seconds = $after ? trim(explode(':', reset($after), 2)[1]) : 10;
        $redis->rawCommand('TB.PENALISE', 'limit:vendor', $seconds);
    }
}

for ($job = 1; $job <= (int) getenv('JOBS'); $job++) {
    call($redis, (string) $job);
}
