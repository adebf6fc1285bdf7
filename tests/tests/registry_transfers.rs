//! Uploads and downloads that are interrupted and completed, against Debian's registry behind a proxy that cuts connections.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rollout_registry::artifact::{COMPONENT, Descriptor};
use rollout_registry::{Options, Reference, Registry};
use rollout_tests::TestRegistry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const MIB: usize = 1 << 20;

/// A proxy that cuts one connection after a number of bytes in one direction.
struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Bytes until the cut.
    to_registry: Mutex<Option<usize>>,
    from_registry: Mutex<Option<usize>>,
    /// Beginnings of the requests.
    requests: Mutex<Vec<String>>,
}

impl Proxy {
    async fn start(registry: &TestRegistry) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State::default());
        let (target, shared) = (registry.address().to_owned(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, target.clone(), Arc::clone(&shared)));
            }
        });
        Self { address, state }
    }

    fn registry(&self) -> Registry {
        let reference: Reference = format!("oci://{}/blobs:1", self.address).parse().unwrap();
        Registry::new(&reference, Options { plain_http: true, ..Options::default() }).unwrap()
    }

    /// Returns the requests so far that begin with this method, and have the header.
    fn requests(&self, method: &str, header: &str) -> Vec<String> {
        let requests = self.state.requests.lock().unwrap();
        let is_it = |text: &&String| text.starts_with(method) && text.to_lowercase().contains(header);
        requests.iter().filter(is_it).cloned().collect()
    }
}

async fn forward(client: TcpStream, target: String, state: Arc<State>) {
    let Ok(registry) = TcpStream::connect(target).await else { return };
    let ((from_client, to_client), (from_registry, to_registry)) =
        (client.into_split(), registry.into_split());
    // The end of either direction closes both.
    tokio::select! {
        () = copy(from_client, to_registry, &state.to_registry, Some(&state.requests)) => {}
        () = copy(from_registry, to_client, &state.from_registry, None) => {}
    }
}

async fn copy(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    cut: &Mutex<Option<usize>>,
    requests: Option<&Mutex<Vec<String>>>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..count];
        let begins = ["GET ", "HEAD ", "POST ", "PATCH ", "PUT "];
        if let Some(requests) = requests
            && begins.iter().any(|method| bytes.starts_with(method.as_bytes()))
        {
            let head = &bytes[..bytes.len().min(1000)];
            requests.lock().unwrap().push(String::from_utf8_lossy(head).into_owned());
        }
        let permitted = match &mut *cut.lock().unwrap() {
            Some(left) if *left <= count => Some(*left),
            Some(left) => {
                *left -= count;
                None
            }
            None => None,
        };
        if let Some(permitted) = permitted {
            *cut.lock().unwrap() = None;
            let _ = to.write_all(&bytes[..permitted]).await;
            return;
        }
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

/// Returns bytes without repetition.
fn bytes(length: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(&mut next).flatten().take(length).collect()
}

#[tokio::test]
async fn a_download_that_is_cut_continues_where_it_stopped() {
    let server = TestRegistry::start().await;
    let proxy = Proxy::start(&server).await;
    let blob = bytes(3 * MIB);
    let descriptor = Descriptor::of(COMPONENT, &blob);
    proxy.registry().push_blob(&descriptor, blob.clone().into(), &|_| {}).await.unwrap();
    *proxy.state.from_registry.lock().unwrap() = Some(MIB);

    let received = proxy.registry().blob(&descriptor, |_| {}).await.unwrap();

    assert!(received == blob, "the bytes differ");
    let ranges = proxy.requests("GET", "range: bytes=");
    assert_eq!(ranges.len(), 1, "{ranges:?}");
    let begin =
        ranges[0].to_lowercase().split("range: bytes=").nth(1).unwrap().split('-').next().unwrap().parse();
    let begin: usize = begin.unwrap();
    assert!((1..=MIB).contains(&begin), "{begin}");
}

#[tokio::test]
async fn an_upload_that_is_cut_is_completed() {
    let server = TestRegistry::start().await;
    let proxy = Proxy::start(&server).await;
    let blob = bytes(20 * MIB);
    let descriptor = Descriptor::of(COMPONENT, &blob);
    // The second part of three is cut.
    *proxy.state.to_registry.lock().unwrap() = Some(12 * MIB);

    proxy.registry().push_blob(&descriptor, blob.clone().into(), &|_| {}).await.unwrap();

    assert!(proxy.state.to_registry.lock().unwrap().is_none(), "the connection was cut");
    // The client asks the registry for the received length. This registry has lost the upload, so it begins again.
    assert_eq!(proxy.requests("GET", "/blobs/uploads/").len(), 1);
    assert_eq!(proxy.requests("POST", "/blobs/uploads/").len(), 2);
    assert_eq!(proxy.requests("PATCH", "content-range: 0-").len(), 2);
    assert!(proxy.registry().blob(&descriptor, |_| {}).await.unwrap() == blob, "the bytes differ");
}

#[tokio::test]
async fn a_registry_that_always_cuts_is_given_up_with_the_reason() {
    let server = TestRegistry::start().await;
    let blob = bytes(MIB);
    let descriptor = Descriptor::of(COMPONENT, &blob);
    let proxy = Proxy::start(&server).await;
    proxy.registry().push_blob(&descriptor, blob.into(), &|_| {}).await.unwrap();
    drop(server);

    let error = proxy.registry().blob(&descriptor, |_| {}).await.unwrap_err();

    assert!(error.to_string().contains("cannot be reached"), "{error}");
    assert_eq!(proxy.requests("GET", "/blobs/").len(), 0, "nothing reaches a registry that is gone");
}
