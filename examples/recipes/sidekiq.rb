# A Sidekiq job that comes back when it was told to: sidekiq -r ./sidekiq.rb
require "net/http"
require "redis"
require "sidekiq"

Sidekiq.configure_client { |config| config.redis = { port: ENV["REDIS_PORT"].to_i } }
Sidekiq.configure_server do |config|
  config.redis = { port: ENV["REDIS_PORT"].to_i }
  # How often it looks for jobs whose time has come; unless set, every 15 seconds or so.
  config.average_scheduled_poll_interval = 1
end

class CallVendor
  include Sidekiq::Worker
  # For real failures. A job that is sent again for later begins anew: after a 429 it has
  # all three again.
  sidekiq_options retry: 3

  BUCKET = Redis.new(port: ENV["REDIS_PORT"].to_i)

  def perform(job)
    allowed, _, wait_ms = BUCKET.call("TB.CONSUME", "limit:vendor", 8, 50)
    # A job like this one, for later. Raising would count a retry.
    return self.class.perform_in(wait_ms / 1000.0, job) if allowed.zero?

    response = Net::HTTP.post(URI("#{ENV["VENDOR"]}/send"), "", "Idempotency-Key" => job.to_s)
    if response.code == "429"
      # Seconds here; a date goes after UNTIL, as Unix time.
      wait_ms = BUCKET.call("TB.PENALISE", "limit:vendor", response["Retry-After"] || 10)
      return self.class.perform_in(wait_ms / 1000.0, job)
    end
    raise "the vendor answered #{response.code}" unless response.is_a?(Net::HTTPSuccess)
  end
end
