//! Returns its input tensors unchanged, under the same names.

mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "tensor-function" });
}

use bindings::exports::weir::inference::stage::Guest;
use bindings::weir::inference::tensors::{Error, Tensor};

struct Echo;

impl Guest for Echo {
    fn run(inputs: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>, Error> {
        Ok(inputs)
    }
}

bindings::export!(Echo with_types_in bindings);
