//! Phases of invocations.

/// Phase of an invocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Waiting for a turn and a placement.
    Queue,
    /// Reading the compiled component from disk.
    Fetch,
    /// Compiling the component, if its artifact does not fit this build.
    Compile,
    /// Creating the sandbox.
    Instantiate,
    /// Running the guest, including its host calls.
    Guest,
    /// Loading a model into device memory.
    ModelLoad,
    /// Running a model, including the wait for a run slot.
    ModelRun,
    /// Decoding an image, including the wait for a turn.
    ImageDecode,
    /// Sending the rest of the response.
    Reply,
}

impl Phase {
    pub(crate) const ALL: [Self; 9] = [
        Self::Queue,
        Self::Fetch,
        Self::Compile,
        Self::Instantiate,
        Self::Guest,
        Self::ModelLoad,
        Self::ModelRun,
        Self::ImageDecode,
        Self::Reply,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Fetch => "fetch",
            Self::Compile => "compile",
            Self::Instantiate => "instantiate",
            Self::Guest => "guest",
            Self::ModelLoad => "model_load",
            Self::ModelRun => "model_run",
            Self::ImageDecode => "image_decode",
            Self::Reply => "reply",
        }
    }
}
