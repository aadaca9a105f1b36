//! S3 server with one empty bucket.

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use std::net::SocketAddr;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

const BUCKET: &str = "weir";
const KEY: &str = "weir-test-key";
const SECRET: &str = "weir-test-secret";

/// S3 server in this process. It ends on drop.
pub struct S3 {
    address: SocketAddr,
    folder: TempDir,
    /// Names of objects whose reads wait.
    held: watch::Sender<Vec<String>>,
    /// Paths of all reads.
    reads: Arc<Mutex<Vec<String>>>,
    serving: JoinHandle<()>,
}

impl S3 {
    /// Starts the server.
    pub async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder cannot be created");
        std::fs::create_dir(folder.path().join(BUCKET)).expect("the bucket cannot be made");
        let files = FileSystem::new(folder.path()).expect("the folder can be served");
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = service.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("there is no free port");
        let address = listener.local_addr().expect("the listener has an address");
        let (held, holds) = watch::channel(Vec::new());
        let reads = Arc::<Mutex<Vec<String>>>::default();
        let all_reads = reads.clone();
        let serving = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = service.clone();
                let holds = holds.clone();
                let reads = all_reads.clone();
                connections.spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    let held_service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                        let service = service.clone();
                        let mut holds = holds.clone();
                        let reads = reads.clone();
                        async move {
                            let path = request.uri().path();
                            let is_read = request.method() == hyper::Method::GET;
                            if is_read {
                                reads.lock().push(path.to_owned());
                            }
                            let is_free = |held: &Vec<String>| {
                                !is_read || !held.iter().any(|name| path.ends_with(name))
                            };
                            // The server of a test that has ended answers nothing.
                            let _ = holds.wait_for(is_free).await;
                            service.call(request.map(s3s::Body::from)).await
                        }
                    });
                    let _ = server.serve_connection(TokioIo::new(stream), held_service).await;
                });
            }
        });
        Self { address, folder, held, reads, serving }
    }

    /// Lets reads of the objects with these names wait until the next call.
    pub fn hold(&self, names: Vec<String>) {
        self.held.send_replace(names);
    }

    /// Number of reads of objects whose names have this end.
    #[must_use]
    pub fn reads(&self, end: &str) -> usize {
        self.reads.lock().iter().filter(|path| path.ends_with(end)).count()
    }

    /// URL of the bucket for `--blobs`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/nodes")
    }

    /// Environment variables for clients of the server.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }

    /// Folder of the bucket, for tests that inspect or corrupt its objects.
    #[must_use]
    pub fn folder(&self) -> std::path::PathBuf {
        self.folder.path().join(BUCKET).join("nodes")
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
