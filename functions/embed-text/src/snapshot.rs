//! What runs once, when a snapshot of the component is taken.

wit_bindgen::generate!({ inline: "package weir:snapshot; world snapshot { export wizer-initialize: func(); }" });

struct Snapshot;

impl Guest for Snapshot {
    fn wizer_initialize() {
        if let Err(error) = crate::tokens::prepare() {
            // Nobody else could tell the author: the snapshot fails with this on its standard error.
            #[expect(clippy::panic, reason = "a component without its vocabulary must not be made")]
            {
                panic!("{error}");
            }
        }
    }
}

export!(Snapshot);
