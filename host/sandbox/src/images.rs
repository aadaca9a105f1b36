//! Images of guests: decoded on blocking threads, a limited number at once, with fair turns for
//! tenants.

use crate::clock::thread_cpu_time;
use crate::config::ImagesConfig;
use std::sync::Arc;
use std::time::{Duration, Instant};
use weir_call::{Fault, Turnstile, until};
use weir_image::{ImageError, ImageLimits, Stop};
use weir_types::TenantId;

/// The turns and limits of all decodings on the node.
pub struct ImageDecoder {
    turns: Turnstile,
    limits: ImageLimits,
    wall_ms_max: u64,
}

/// The decoder as one tenant may use it.
#[derive(Clone)]
pub struct TenantImages {
    decoder: Arc<ImageDecoder>,
    tenant: TenantId,
}

/// The reason why a decoding has no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecodeError {
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The invocation's deadline has passed.
    #[error("the deadline has passed")]
    DeadlineExceeded,
    #[error(
        "decoding the image takes longer than {wall_ms_max} ms (sandbox.images.decode_wall_ms_max); send a smaller image, or try again when the node is less busy"
    )]
    OverTime { wall_ms_max: u64 },
    /// Too many images of the tenant wait.
    #[error("{0}")]
    Busy(String),
    /// The decoder has a defect.
    #[error("the decoder failed on this image; save the image again with another program")]
    Crashed,
    #[error("the node is shutting down")]
    ShuttingDown,
}

impl ImageDecoder {
    /// Creates the decoder with the limits of `config`.
    #[must_use]
    pub fn new(config: &ImagesConfig) -> Self {
        Self {
            turns: Turnstile::new("images", config.decodes_max, config.tenant_waiting_max),
            limits: ImageLimits {
                encoded_bytes_max: config.encoded_bytes_max,
                pixels_max: config.pixels_max,
            },
            wall_ms_max: config.decode_wall_ms_max,
        }
    }
}

impl TenantImages {
    /// Lends the decoder to `tenant`.
    #[must_use]
    pub fn new(decoder: Arc<ImageDecoder>, tenant: TenantId) -> Self {
        Self { decoder, tenant }
    }

    pub(crate) fn limits(&self) -> ImageLimits {
        self.decoder.limits
    }

    /// Runs `job` on a blocking thread once the tenant has a turn, and passes its CPU time to
    /// `charge`. Stops it after the node's time limit, at `deadline`, and if the returned future is
    /// dropped. A stopped job keeps its turn until it ends.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        charge: impl FnOnce(Duration) + Send + 'static,
        job: impl FnOnce(&Stop) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, DecodeError> {
        let turn = until(deadline, self.decoder.turns.turn(&self.tenant)).await;
        let turn = turn
            .ok_or(DecodeError::DeadlineExceeded)?
            .map_err(|Fault { text, .. }| DecodeError::Busy(text))?;
        let stopped = StopGuard(Stop::default());
        let stop = stopped.0.clone();
        let wall_ms_max = self.decoder.wall_ms_max;
        let end = Instant::now() + Duration::from_millis(wall_ms_max);
        let decoding = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let before = thread_cpu_time();
            let result = job(&stop);
            charge(thread_cpu_time().saturating_sub(before));
            result
        });
        match until(end.min(deadline), decoding).await {
            Some(Ok(result)) => Ok(result?),
            Some(Err(error)) if error.is_panic() => {
                tracing::error!(tenant = %self.tenant, "the decoder of images panicked");
                Err(DecodeError::Crashed)
            }
            Some(Err(_)) => Err(DecodeError::ShuttingDown),
            None if end < deadline => Err(DecodeError::OverTime { wall_ms_max }),
            None => Err(DecodeError::DeadlineExceeded),
        }
    }
}

/// Stops a decoding when its caller has dropped the future that waits for it.
struct StopGuard(Stop);

impl Drop for StopGuard {
    fn drop(&mut self) {
        self.0.set();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;
    use std::pin::pin;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const FAR: Duration = Duration::from_secs(60);

    fn images(decodes_max: usize, tenant_waiting_max: usize, decode_wall_ms_max: u64) -> TenantImages {
        let config =
            ImagesConfig { decodes_max, tenant_waiting_max, decode_wall_ms_max, ..ImagesConfig::default() };
        TenantImages::new(Arc::new(ImageDecoder::new(&config)), TenantId::new("a").unwrap())
    }

    async fn run<T: Send + 'static>(
        images: &TenantImages,
        job: impl FnOnce(&Stop) -> Result<T, ImageError> + Send + 'static,
    ) -> Result<T, DecodeError> {
        images.run(Instant::now() + FAR, |_| {}, job).await
    }

    /// A job that ends once it is stopped, and then reports to the channel.
    fn until_stopped(ended: Sender<()>) -> impl FnOnce(&Stop) -> Result<(), ImageError> + Send {
        move |stop| {
            while !stop.is_set() {
                std::thread::yield_now();
            }
            ended.send(()).unwrap();
            Err(ImageError::Stopped)
        }
    }

    #[tokio::test]
    async fn time_limit_and_deadline_stop_the_job() {
        let limited = images(1, 1, 5);
        let (ended, end): (_, Receiver<()>) = channel();
        let error = run(&limited, until_stopped(ended.clone())).await.unwrap_err();
        assert!(
            error.to_string().contains("longer than 5 ms (sandbox.images.decode_wall_ms_max)"),
            "{error}"
        );
        end.recv_timeout(FAR).unwrap();
        let deadline = Instant::now() + Duration::from_millis(5);
        let late = images(1, 1, 60_000).run(deadline, |_| {}, until_stopped(ended)).await;
        assert!(matches!(late, Err(DecodeError::DeadlineExceeded)));
        end.recv_timeout(FAR).unwrap();
    }

    #[tokio::test]
    async fn abandoned_job_is_stopped_and_keeps_its_turn_until_it_ends() {
        let images = images(1, 1, 60_000);
        let (ended, end) = channel();
        let (release, released): (Sender<()>, _) = channel();
        let first = run(&images, move |stop| {
            until_stopped(ended)(stop).unwrap_err();
            released.recv_timeout(FAR).unwrap();
            Ok(())
        });
        {
            let mut first = pin!(first);
            assert!(first.as_mut().now_or_never().is_none(), "it runs");
        }
        end.recv_timeout(FAR).unwrap();
        let mut second = pin!(run(&images, |_| Ok(7)));
        assert!(second.as_mut().now_or_never().is_none(), "the first job has the turn");
        let third = run(&images, |_| Ok(8)).await;
        assert!(
            matches!(&third, Err(DecodeError::Busy(text)) if text.contains("1 images of this tenant wait"))
        );
        release.send(()).unwrap();
        assert_eq!(second.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn crash_is_an_error_and_releases_the_turn() {
        let images = images(1, 1, 60_000);
        let crashed = run::<()>(&images, |_| std::panic::resume_unwind(Box::new("a defect"))).await;
        assert!(matches!(crashed, Err(DecodeError::Crashed)));
        assert_eq!(run(&images, |_| Ok(7)).await.unwrap(), 7);
    }

    #[tokio::test]
    async fn processor_time_of_the_job_is_charged() {
        let (charged, charge) = channel();
        let spent = Duration::from_millis(5);
        let spin = move |_: &Stop| {
            let before = thread_cpu_time();
            while thread_cpu_time() - before < spent {
                std::hint::spin_loop();
            }
            Ok(())
        };
        let charging = move |time| charged.send(time).unwrap();
        images(1, 1, 60_000).run(Instant::now() + FAR, charging, spin).await.unwrap();
        assert!(charge.recv().unwrap() >= spent);
    }
}
