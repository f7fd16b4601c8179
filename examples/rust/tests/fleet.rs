//! The fleet against a real Redis and the mock vendor.
#![cfg(test)] // all of it: what tests may do, their helpers may

use std::time::Duration;

use fleet::pace::{Budget, Pace, Turn};
use fleet::queue::{Job, MOST_FAILURES, Queue, RECLAIM_AFTER};
use fleet::worker::{HOLD, Worker};
use mock_vendor::limiter::{Settings, Window};
use mock_vendor::{Behaviour, Vendor};
use private_redis::Server;
use redis::AsyncCommands as _;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

const KEY: &str = "limit:vendor";

struct Site {
    server: Server,
    vendor: Vendor,
    url: String,
}

/// One process of the fleet, which ends when the sender is dropped.
type Process = (oneshot::Sender<()>, JoinHandle<anyhow::Result<()>>);

impl Site {
    async fn open() -> Self {
        Self::with(None, 0.0).await
    }

    async fn with(window: Option<Window>, others: f64) -> Self {
        let vendor = Vendor::new(Behaviour {
            settings: Settings { rate: 500, burst: 100, window },
            surprises: Vec::new(),
            others,
            latency: (Duration::from_millis(1), Duration::from_millis(2)),
            dates: false,
            seed: 1,
        });
        let (address, serving) = vendor.clone().serve(0).await.unwrap();
        tokio::spawn(serving);
        Self { server: Server::with_module().unwrap(), vendor, url: format!("http://{address}") }
    }

    async fn queue(&self, consumer: &str) -> Queue {
        Queue::open(&self.server.url(), "fleet", consumer).await.unwrap()
    }

    async fn start(&self, consumer: &str) -> Process {
        let pace = Budget::open(&self.server.url(), KEY, 400, 50).await.unwrap();
        let worker = Worker { queue: self.queue(consumer).await, pace, vendor: self.url.clone(), client: reqwest::Client::new() };
        let (stop, stopped) = oneshot::channel();
        (stop, tokio::spawn(worker.run(4, async { drop(stopped.await) })))
    }

    /// As if [`RECLAIM_AFTER`] had passed for all that workers have.
    async fn age(&self) {
        let mut connection = self.connection().await;
        let pending: redis::streams::StreamPendingCountReply =
            connection.xpending_count("{fleet}:jobs", "workers", "-", "+", 100).await.unwrap();
        for entry in pending.ids {
            let aged: redis::RedisResult<redis::Value> = redis::cmd("XCLAIM")
                .arg(&["{fleet}:jobs", "workers", &entry.consumer, "0", &entry.id, "IDLE"])
                .arg(RECLAIM_AFTER.as_millis().to_string())
                .query_async(&mut connection)
                .await;
            aged.unwrap();
        }
    }

    /// One field of the bucket that is a decimal.
    async fn peek(&self, field: &str) -> String {
        let reply = redis::cmd("TB.PEEK").arg(KEY).query_async(&mut self.connection().await).await;
        let fields: std::collections::HashMap<String, Option<String>> = reply.unwrap();
        fields[field].clone().unwrap()
    }

    async fn connection(&self) -> redis::aio::MultiplexedConnection {
        redis::Client::open(self.server.url()).unwrap().get_multiplexed_async_connection().await.unwrap()
    }
}

fn jobs(path: &str, count: usize) -> Vec<Job> {
    (0..count).map(|n| Job { id: format!("{path}-{n}"), path: path.to_owned(), failures: 0 }).collect()
}

async fn wait_until(queue: &Queue, what: &str, condition: impl Fn(&fleet::queue::Fill) -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let fill = queue.fill().await.unwrap();
        if condition(&fill) {
            return;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}: {fill}");
        sleep(Duration::from_millis(10)).await;
    }
}

async fn end((stop, process): Process) {
    drop(stop);
    process.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_done_once_through_a_freeze_that_counts_as_no_failure() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let process = site.start("a").await;
    // One more failure and they would be given up.
    let jobs: Vec<_> = jobs("send", 100).into_iter().map(|job| Job { failures: MOST_FAILURES - 1, ..job }).collect();
    queue.enqueue(&jobs).await.unwrap();
    wait_until(&queue, "the first jobs", |fill| fill.waiting < 80).await;
    site.vendor.freeze(Duration::from_secs(2));
    wait_until(&queue, "all jobs", fleet::queue::Fill::is_over).await;
    let account = site.vendor.account();
    assert_eq!((account.accepted, account.accepted_twice), (100, 0));
    assert!((1..=4).contains(&account.refused), "{} calls refused; only those in flight may be", account.refused);
    assert_eq!(site.peek("rate").await, "500", "what the vendor announced, where 400 was configured");
    assert_eq!(queue.fill().await.unwrap().dead, 0);
    end(process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vendor_with_a_window_is_neither_outrun_nor_left_idle() {
    let site = Site::with(Some(Window { limit: 200, length: Duration::from_secs(2) }), 0.0).await;
    let queue = site.queue("test").await;
    let process = site.start("a").await;
    let begun = Instant::now();
    queue.enqueue(&jobs("send", 500)).await.unwrap();
    wait_until(&queue, "all jobs", fleet::queue::Fill::is_over).await;
    let account = site.vendor.account();
    assert_eq!((account.accepted, account.accepted_twice), (500, 0));
    assert!(account.refused <= 12, "{} calls refused: more than those in flight at two windows' ends", account.refused);
    assert!(begun.elapsed() < Duration::from_secs(12), "three windows took {:?}", begun.elapsed());
    assert_eq!(site.peek("rate").await, "400", "200 calls in a window are no 200 a second");
    end(process).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_three_times_is_a_dead_letter_until_it_is_redriven() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let process = site.start("a").await;
    queue.enqueue(&jobs("broken", 1)).await.unwrap();
    wait_until(&queue, "the job to be given up", |fill| fill.dead == 1 && fill.is_over()).await;
    let failures = |calls: &[mock_vendor::book::Call]| calls.iter().filter(|call| call.status == 500).count();
    assert_eq!(failures(&site.vendor.calls()), 3);
    assert_eq!(queue.fill().await.unwrap().oldest, None);

    assert_eq!(queue.redrive().await.unwrap(), 1);
    assert_eq!(queue.redrive().await.unwrap(), 0);
    wait_until(&queue, "it to be given up again", |fill| fill.dead == 1 && fill.is_over()).await;
    assert_eq!(failures(&site.vendor.calls()), 6, "it had all its tries again");
    end(process).await;
}

#[tokio::test]
async fn a_job_whose_worker_is_gone_comes_back_and_counts_no_failure() {
    let site = Site::open().await;
    let queue = site.queue("gone").await;
    let job = Job { failures: MOST_FAILURES - 1, ..jobs("send", 1).remove(0) };
    queue.enqueue(std::slice::from_ref(&job)).await.unwrap();
    assert_eq!(queue.fetch(10).await.unwrap().len(), 1);

    let other = site.queue("other").await;
    assert!(other.fetch(10).await.unwrap().is_empty(), "its worker may still be at it");
    site.age().await;
    let came_back = other.fetch(10).await.unwrap();
    assert_eq!(came_back.iter().map(|taken| &taken.job).collect::<Vec<_>>(), [&job]);
    other.done(&came_back[0]).await.unwrap();
    assert!(queue.fill().await.unwrap().is_over());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_would_wait_longer_than_a_worker_may_hold_it_goes_back_into_the_queue() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let freeze: i64 =
        redis::cmd("TB.PENALISE").arg(KEY).arg(HOLD.as_secs() + 60).query_async(&mut site.connection().await).await.unwrap();
    assert!(freeze > 0);
    let process = site.start("a").await;
    queue.enqueue(&jobs("send", 6)).await.unwrap();
    wait_until(&queue, "all to be delayed", |fill| (fill.delayed, fill.waiting, fill.in_flight) == (6, 0, 0)).await;
    assert_eq!(site.vendor.account().calls, 0);
    let delayed: Vec<String> = site.connection().await.zrange("{fleet}:delayed", 0, -1).await.unwrap();
    assert!(delayed.iter().all(|job| job.contains("\"failures\":0")), "{delayed:?}");
    end(process).await;
}

#[tokio::test]
async fn a_slot_that_a_429_voided_meanwhile_is_not_used() {
    let site = Site::open().await;
    let pace = Budget::open(&site.server.url(), KEY, 2, 1).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    assert_eq!(pace.turn(deadline).await.unwrap(), Turn::Now);
    let turn = tokio::spawn(async move { pace.turn(deadline).await });
    // Once the slot is reserved, somebody else is refused.
    while !site.peek("tokens").await.starts_with('-') {
        sleep(Duration::from_millis(5)).await;
    }
    let penalty: redis::RedisResult<()> =
        redis::cmd("TB.PENALISE").arg(KEY).arg(60).query_async(&mut site.connection().await).await;
    penalty.unwrap();
    let turn = turn.await.unwrap().unwrap();
    assert!(matches!(turn, Turn::Later(wait) if wait > Duration::from_secs(50)), "{turn:?}");
}

#[tokio::test]
async fn a_delayed_job_comes_when_its_time_has_come() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    queue.enqueue(&jobs("send", 1)).await.unwrap();
    let taken = queue.fetch(1).await.unwrap();
    let begun = Instant::now();
    queue.delay(&taken[0], Duration::from_millis(600)).await.unwrap();
    let mut again = Vec::new();
    while again.is_empty() {
        again = queue.fetch(1).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "it never came");
    }
    assert!(begun.elapsed() >= Duration::from_millis(599), "{:?}", begun.elapsed());
    assert_eq!(again[0].job, taken[0].job);
}

#[tokio::test]
async fn the_fill_says_how_old_the_oldest_job_is() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    assert_eq!(queue.fill().await.unwrap().to_string(), "oldest 0.0 s, waiting 0, delayed 0, in flight 0, dead letters 0");
    queue.enqueue(&jobs("send", 3)).await.unwrap();
    sleep(Duration::from_millis(120)).await;
    queue.fetch(1).await.unwrap();
    let fill = queue.fill().await.unwrap();
    assert_eq!((fill.waiting, fill.in_flight), (2, 1));
    assert!(fill.oldest.unwrap() >= Duration::from_millis(120), "{fill}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_loses_no_job() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let start = || {
        let mut fleet = std::process::Command::new(env!("CARGO_BIN_EXE_fleet"));
        fleet.args(["--redis", &site.server.url(), "work", "--vendor", &site.url, "--rate", "100", "--burst", "10"]);
        fleet.spawn().unwrap()
    };
    let (mut one, mut other) = (start(), start());
    queue.enqueue(&jobs("send", 200)).await.unwrap();
    wait_until(&queue, "the first jobs", |fill| fill.waiting < 150).await;
    one.kill().unwrap();
    one.wait().unwrap();
    wait_until(&queue, "the rest", |fill| fill.waiting + fill.delayed == 0).await;
    sleep(Duration::from_millis(500)).await; // the other's last calls
    site.age().await;
    wait_until(&queue, "those that it had", fleet::queue::Fill::is_over).await;
    other.kill().unwrap();
    other.wait().unwrap();
    let account = site.vendor.account();
    assert_eq!(account.accepted - account.accepted_twice, 200);
    assert!(account.accepted_twice <= 4, "{account:?}: more than its calls");
}

#[tokio::test]
async fn an_entry_that_is_no_job_is_given_up_and_stops_nothing() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let mut connection = site.connection().await;
    let _: String = connection.xadd("{fleet}:jobs", "*", &[("what", "ever")]).await.unwrap();
    let _: String = connection.xadd("{fleet}:jobs", "*", &[("job", "{}")]).await.unwrap();
    queue.enqueue(&jobs("send", 1)).await.unwrap();
    let taken = queue.fetch(10).await.unwrap();
    assert_eq!(taken.iter().map(|taken| &*taken.job.id).collect::<Vec<_>>(), ["send-0"]);
    queue.done(&taken[0]).await.unwrap();
    assert_eq!(queue.fill().await.unwrap().to_string(), "oldest 0.0 s, waiting 0, delayed 0, in flight 0, dead letters 2");
    assert_eq!(queue.redrive().await.unwrap(), 0);
}

#[tokio::test]
async fn a_redis_that_was_emptied_gets_its_group_back() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    redis::cmd("FLUSHALL").query_async::<()>(&mut site.connection().await).await.unwrap();
    queue.enqueue(&jobs("send", 1)).await.unwrap();
    assert!(queue.fetch(1).await.unwrap().is_empty());
    assert_eq!(queue.fetch(1).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_stands_still_is_waited_for_but_not_for_ever() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    let server: redis::InfoDict = redis::cmd("INFO").arg("server").query_async(&mut site.connection().await).await.unwrap();
    let pid: String = server.get("process_id").unwrap();
    let signal = |name: &str| assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    // It waits for new jobs when the server stops.
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.fetch(1).await.map(|taken| taken.len()) }
    });
    sleep(Duration::from_millis(50)).await;
    signal("-STOP");
    let waited = tokio::time::timeout(Duration::from_secs(8), waiting).await;
    signal("-CONT");
    waited.expect("it waits for ever").unwrap().unwrap_err();
    queue.enqueue(&jobs("send", 1)).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !queue.fetch(1).await.is_ok_and(|taken| taken.len() == 1) {
        assert!(Instant::now() < deadline, "it never went on");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_batch_takes_what_is_there_in_one_go() {
    let site = Site::open().await;
    let pace = Budget::open(&site.server.url(), KEY, 1, 5).await.unwrap();
    assert_eq!(pace.batch(3).await.unwrap(), 3);
    assert_eq!(pace.batch(4).await.unwrap(), 2);
    assert_eq!(pace.batch(4).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_a_failure() {
    let mut site = Site::open().await;
    site.url = "http://127.0.0.1:1".to_owned(); // nobody is there
    let queue = site.queue("test").await;
    let process = site.start("a").await;
    queue.enqueue(&jobs("send", 1)).await.unwrap();
    wait_until(&queue, "it to be given up", |fill| fill.dead == 1 && fill.is_over()).await;
    end(process).await;
}

/// Calls as late as it may.
struct Late;

impl Pace for Late {
    async fn batch(&self, _: usize) -> anyhow::Result<usize> {
        Ok(0)
    }

    async fn turn(&self, deadline: Instant) -> anyhow::Result<Turn> {
        tokio::time::sleep_until(deadline).await;
        Ok(Turn::Now)
    }

    async fn heard(&self, _: &reqwest::Response) -> anyhow::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_429_that_comes_late_counts_as_no_failure() {
    let site = Site::open().await;
    let queue = site.queue("test").await;
    site.vendor.freeze(Duration::from_secs(60));
    let worker = Worker { queue: queue.clone(), pace: Late, vendor: site.url.clone(), client: reqwest::Client::new() };
    let (stop, stopped) = oneshot::channel::<()>();
    let process = tokio::spawn(worker.run(1, async { drop(stopped.await) }));
    let job = Job { failures: MOST_FAILURES - 1, ..jobs("send", 1).remove(0) };
    queue.enqueue(&[job]).await.unwrap();
    wait_until(&queue, "the job to be taken", |fill| fill.in_flight == 1).await;
    while site.vendor.account().refused == 0 {
        sleep(Duration::from_millis(10)).await;
    }
    sleep(Duration::from_millis(500)).await; // for the worker to read it
    let fill = queue.fill().await.unwrap();
    assert!(fill.dead == 0 && !fill.is_over(), "{fill}");
    process.abort();
    drop(stop);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_clients_cost_some_429s_and_no_job() {
    let site = Site::with(None, 150.0).await;
    let queue = site.queue("test").await;
    let process = site.start("a").await;
    queue.enqueue(&jobs("send", 600)).await.unwrap();
    wait_until(&queue, "all jobs", fleet::queue::Fill::is_over).await;
    let account = site.vendor.account();
    assert_eq!((account.accepted, account.accepted_twice), (600, 0));
    assert!(account.refused <= 20, "{account:?}");
    end(process).await;
}
