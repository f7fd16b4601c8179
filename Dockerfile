# Redis from Debian 12 with the module in it. From the repository:
#
#   docker build -t redis-tokenbucket .
#   docker run --rm --name limiter redis-tokenbucket
#   docker exec limiter redis-cli TB.CONSUME vendor 100 10
#
# Both stages are of one release: the module is linked against the libc it will
# run with.

FROM debian:bookworm-slim AS build

# rustc-web is the newer of Debian 12's two compilers; bindgen needs libclang.
# Versions are not pinned: the release's security updates are wanted.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
      ca-certificates cargo-web gcc libc6-dev libclang-dev rustc-web \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY . .
# The places of the sources are in what is built; by these names it is what ./dev build makes
# with the same compiler and libclang.
RUN RUSTFLAGS='--remap-path-prefix=/src=/redis-tokenbucket --remap-path-prefix=/root/.cargo=/crates' \
    cargo build --release --locked --lib

# redis.conf as it is, but for the module's place and for `bind`: inside a
# container the loopback interface is nobody else's, so the server has to listen
# on all. What protects it is protected-mode, which stays on: other containers and
# published ports are refused until the server has a password,
#
#   docker run -p 127.0.0.1:6379:6379 -e REDISCLI_AUTH=secret redis-tokenbucket --requirepass secret
#
# (the variable is for the health check), or until you say that whoever reaches
# the container may use it, as on a network with nothing else on it:
#
#   docker run --network limiter redis-tokenbucket --protected-mode no
RUN sed -E \
      -e 's#^loadmodule .*#loadmodule /usr/lib/redis/modules/libredis_tokenbucket.so#' \
      -e 's/^bind .*/bind * -::*/' \
      redis.conf > target/redis.conf \
 && grep -qx 'loadmodule /usr/lib/redis/modules/libredis_tokenbucket.so' target/redis.conf \
 && grep -qxF 'bind * -::*' target/redis.conf \
 && grep -qx 'protected-mode yes' target/redis.conf


FROM debian:bookworm-slim

# The user the package would make, with a number that is known: who runs the image
# can tell from it that it is not root, and who owns the volume's files.
# hadolint ignore=DL3008
RUN groupadd --system --gid 999 redis \
 && useradd --system --uid 999 --gid redis --home-dir /data --no-create-home redis \
 && apt-get update \
 && apt-get install -y --no-install-recommends redis-server \
 && rm -rf /var/lib/apt/lists/* \
 && install -d -o redis -g redis -m 750 /data

COPY --from=build /src/target/release/libredis_tokenbucket.so /usr/lib/redis/modules/
COPY --from=build /src/target/redis.conf /etc/redis-tokenbucket/redis.conf

# Snapshots and the append only file are written to the directory the server
# runs in.
WORKDIR /data
VOLUME /data
USER 999:999
EXPOSE 6379

# Asks for 0 tokens: the whole way through the module, and nothing is written.
# Fails too while the server loads its data, and on a replica, which cannot grant.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["sh", "-c", "redis-cli --raw TB.CONSUME tokenbucket:health 1 1 0 | grep -qx granted"]

# Arguments of `docker run` are added as settings: --maxmemory 256mb
ENTRYPOINT ["redis-server", "/etc/redis-tokenbucket/redis.conf"]
