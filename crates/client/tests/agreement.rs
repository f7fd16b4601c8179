//! The same requests in Redis and in this process are answered the same. The figures
//! are such that a slow machine changes none: an hour for each token.

use std::time::Duration;

use tokenbucket_client::{Buckets, Consume, Decision, Limit, Local, MultiConsume, Peek, Penalise, Redis, Refund, Sync, Tokens};

use crate::server::Server;

/// What was answered, in the words of a person; waits to the half minute.
#[derive(Default)]
struct Story(Vec<String>);

impl Story {
    fn add(&mut self, text: impl std::fmt::Debug) {
        self.0.push(format!("{text:?}"));
    }
}

fn about(wait: Duration) -> u64 {
    (wait.as_secs() + 30) / 60
}

async fn tell(buckets: &impl Buckets) -> Vec<String> {
    let limit = Limit::per(1, Duration::from_secs(3600)).unwrap().with_burst(10).unwrap();
    let wider = limit.with_burst(20).unwrap();
    let half: Tokens = "0.5".parse().unwrap();
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let mut story = Story::default();
    let consumes = |key: &'static str| {
        let one = Consume::new(key, limit);
        [
            one.clone(),
            one.clone().tokens(half),
            one.clone().tokens(9),
            one.clone().tokens(11),
            one.clone().tokens(3).up_to(),
            one.clone().max_wait(minutes(60)),
            one.clone().tokens(0),
            one.clone().tokens(4).force(),
            one.clone().tokens(10).max_wait(minutes(300)),
            one.clone().tokens(0),
            Consume::new(key, wider).tokens(2),
            one.clone().tokens(100).up_to(),
            one.clone().max_wait(minutes(10_000)),
        ]
    };
    let syncs = [
        Sync::new("s", 7),
        Sync::new("s", 8),
        Sync::new("s", 5).tolerance(3),
        Sync::new("s", 4).reset(minutes(30)),
        Sync::new("s", 6).reset(minutes(50)),
        Sync::new("s", 3).limit(5),
        Sync::new("s", 2).reset(Duration::ZERO),
    ];
    for round in 0..2 {
        for key in ["a", "p", "s"] {
            if key == "p" {
                story.add(about(buckets.ask(&Penalise::new(key, minutes(20))).await.unwrap().empty));
            }
            for (request, sync) in consumes(key).into_iter().zip(syncs.iter().cycle()) {
                if key == "s" {
                    let synced = buckets.ask(sync).await.unwrap();
                    story.add((synced.applied, synced.remaining));
                }
                let decision = buckets.ask(&request).await.unwrap();
                let times = (decision.wait.map(about), about(decision.full));
                story.add((decision.allowed, decision.remaining, decision.status, times));
                if decision.allowed == 1 && round == 1 {
                    story.add(buckets.ask(&Refund::new(key, 2)).await.unwrap());
                }
                let reading = buckets.ask(&Peek::new(key)).await.unwrap();
                story.add(reading.map(|read| {
                    let vendor = (read.vendor_limit, read.vendor_remaining, read.vendor_reset.map(about));
                    let level = read.tokens.map(|tokens| (tokens * 100.0).round());
                    (
                        read.capacity,
                        read.rate,
                        read.per,
                        level,
                        read.wait.map(about),
                        about(read.frozen),
                        read.full.map(about),
                        vendor,
                    )
                }));
            }
        }
    }
    story.add(buckets.ask(&Refund::new("none", 1)).await.unwrap());
    story.add(buckets.ask(&Peek::new("none")).await.unwrap());
    story.add(about(buckets.ask(&Penalise::new("bare", minutes(5))).await.unwrap().empty));
    story.add(buckets.ask(&Refund::new("bare", 1)).await.unwrap());
    story.add(buckets.ask(&Peek::new("bare")).await.unwrap().map(|read| (about(read.frozen), read.capacity, read.wait)));
    story.0
}

/// What is asked of several buckets, in turn with what is asked of one.
async fn tell_jointly(buckets: &impl Buckets) -> Vec<String> {
    let mut story = Story::default();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 33) % most
    };
    let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
    let quarters = |quarters: u64| Tokens::from_millionths(quarters * 250_000).unwrap();
    let told = |decision: &Decision| {
        (decision.allowed, decision.remaining, decision.status, decision.wait.map(about), about(decision.full))
    };
    for step in 0..600 {
        let mut joint = MultiConsume::new();
        let mut limits = Vec::new();
        for key in 0..5 {
            let burst = [4, 4, 4, 5, 9][usize::try_from(below(5)).unwrap()];
            limits.push(Limit::per(1, minutes(60)).unwrap().with_burst(burst).unwrap());
            if below(2) == 0 {
                let tokens = if below(20) == 0 { 40 } else { below(8) };
                joint = joint.and(format!("{{j}}{key}"), limits[key], quarters(tokens));
            }
        }
        if below(3) == 0 {
            joint = joint.max_wait(minutes(15 * below(40)));
        }
        match buckets.ask(&joint).await {
            Ok(decision) => {
                story.add((step, told(&decision.together), decision.each.iter().map(told).collect::<Vec<_>>()));
            }
            Err(_) => story.add((step, "an error")), // no bucket at all
        }
        let key = usize::try_from(below(5)).unwrap();
        let (one, tokens) = (format!("{{j}}{key}"), quarters(below(20)));
        match below(30) {
            0 => story.add(about(buckets.ask(&Penalise::new(one, minutes(15 * below(20)))).await.unwrap().empty)),
            1 => story.add(buckets.ask(&Sync::new(one, tokens).reset(minutes(15 * below(20)))).await.unwrap()),
            2 => story.add(buckets.ask(&Sync::new(one, tokens).limit(3)).await.unwrap()),
            3..12 => story.add(buckets.ask(&Refund::new(one, tokens)).await.unwrap()),
            _ => story.add(told(&buckets.ask(&Consume::new(one, limits[key]).tokens(tokens)).await.unwrap())),
        }
    }
    let limit = Limit::per(1, minutes(60)).unwrap();
    let many = |count: u8| (0..count).fold(MultiConsume::new(), |joint, key| joint.and(format!("{{m}}{key}"), limit, 1));
    for wrong in [many(65), many(2).and("{m}1", limit, 1), MultiConsume::new()] {
        story.add(buckets.ask(&wrong).await.is_err());
    }
    story.add(buckets.ask(&many(64)).await.unwrap().each.len());
    story.0
}

#[tokio::test]
async fn redis_and_this_process_tell_the_same_story_of_several_buckets() {
    let server = Server::start();
    let (there, here) = (tell_jointly(&Redis(server.multiplexed().await)).await, tell_jointly(&Local::new()).await);
    for (nth, (there, here)) in there.iter().zip(&here).enumerate() {
        assert_eq!(there, here, "answer {nth}");
    }
    assert_eq!(there.len(), here.len());
    for word in ["Granted", "Reserved", "Never", "Frozen", "Window", "Empty", "Ready"] {
        let told = there.iter().filter(|told| told.contains(word)).count();
        assert!(told > 5, "{word} was told {told} times only");
    }
}

#[tokio::test]
async fn redis_and_this_process_tell_the_same_story() {
    let server = Server::start();
    let (there, here) = (tell(&Redis(server.multiplexed().await)).await, tell(&Local::new()).await);
    assert!(there.len() > 150, "{}", there.len());
    for (nth, (there, here)) in there.iter().zip(&here).enumerate() {
        assert_eq!(there, here, "answer {nth}");
    }
    assert_eq!(there.len(), here.len());
}
