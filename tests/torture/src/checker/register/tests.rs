use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn write(node: usize, begin_us: Micros, end_us: impl Into<Option<Micros>>, value: &str) -> Write {
    Write { node, begin_us, end_us: end_us.into(), value: value.to_owned() }
}

fn read(node: impl Into<Option<usize>>, begin_us: Micros, end_us: Micros, value: &str) -> Read {
    let value = (!value.is_empty()).then(|| value.to_owned());
    Read { reader: node.into().map_or(Reader::Healed, Reader::Node), begin_us, end_us, value }
}

fn found(writes: Vec<Write>, reads: Vec<Read>) -> usize {
    Register { writes, reads }.check().len()
}

#[test]
fn other_nodes_may_return_earlier_values() {
    let writes = vec![write(0, 0, 10, "a"), write(0, 20, 30, "b")];
    assert_eq!(found(writes, vec![read(1, 40, 50, "a"), read(0, 40, 50, "b"), read(1, 60, 70, "b")]), 0);
}

#[test]
fn node_that_acknowledged_a_write_returns_no_earlier_value() {
    let writes = vec![write(0, 0, 10, "a"), write(0, 20, 30, "b")];
    assert_eq!(found(writes.clone(), vec![read(0, 31, 50, "a")]), 1);
    // The read began before the end of the write.
    assert_eq!(found(writes, vec![read(0, 29, 50, "a")]), 0);
}

#[test]
fn node_never_returns_to_an_earlier_value() {
    let writes = vec![write(0, 0, 10, "a"), write(0, 20, 30, "b")];
    assert_eq!(found(writes.clone(), vec![read(1, 40, 50, "b"), read(1, 60, 70, "a")]), 1);
    assert_eq!(found(writes, vec![read(1, 40, 50, "b"), read(1, 45, 70, "a")]), 0);
}

#[test]
fn rollback_brings_an_earlier_value_back() {
    let writes = vec![write(0, 0, 10, "a"), write(0, 20, 30, "b"), write(0, 40, 50, "a")];
    assert_eq!(found(writes, vec![read(1, 35, 36, "b"), read(1, 60, 70, "a")]), 0);
}

#[test]
fn write_of_unknown_outcome_may_take_effect_later() {
    let writes = vec![write(0, 0, None, "a"), write(1, 20, 30, "b")];
    assert_eq!(found(writes, vec![read(1, 40, 50, "b"), read(1, 60, 70, "a"), read(None, 80, 90, "a")]), 0);
}

#[test]
fn acknowledged_value_that_nobody_overwrote_is_there_at_the_end() {
    let writes = vec![write(0, 0, 10, "a"), write(1, 20, 30, "b")];
    assert_eq!(found(writes.clone(), vec![read(None, 80, 90, "a")]), 1);
    assert_eq!(found(writes.clone(), vec![read(None, 80, 90, "")]), 1);
    assert_eq!(found(writes, vec![read(None, 80, 90, "b")]), 0);
}

#[test]
fn value_that_nobody_wrote_is_found() {
    assert_eq!(found(vec![write(0, 0, 10, "a")], vec![read(0, 20, 30, "x")]), 1);
    // Written only after the read.
    assert_eq!(found(vec![write(0, 40, 50, "a")], vec![read(0, 20, 30, "a")]), 1);
}

#[test]
fn name_exists_at_all_nodes_after_its_first_acknowledgement() {
    assert_eq!(found(vec![write(0, 0, 10, "a")], vec![read(1, 11, 30, "")]), 1);
    assert_eq!(found(vec![write(0, 0, 10, "a")], vec![read(1, 9, 30, "")]), 0);
    assert_eq!(found(vec![write(0, 0, None, "a")], vec![read(1, 11, 30, "")]), 0);
    assert_eq!(found(vec![write(0, 0, None, "a")], vec![read(0, 11, 30, "a"), read(1, 31, 40, "")]), 1);
}

/// One request to a replicated register: node, duration of its parts, and whether it writes.
#[derive(Debug, Clone)]
struct Request {
    node: usize,
    before: Micros,
    after: Micros,
    is_write: bool,
    loses_answer: bool,
    hears_of: usize,
}

fn request() -> impl Strategy<Value = Request> {
    let parts = (0..3_usize, 0..5_u64, 0..5_u64, any::<bool>(), any::<bool>(), 0..4_usize);
    parts.prop_map(|(node, before, after, is_write, loses_answer, hears_of)| Request {
        node,
        before,
        after,
        is_write,
        loses_answer,
        hears_of,
    })
}

/// Runs the requests on a register whose nodes hear of writes in order, but late. Requests overlap:
/// each begins `before` and ends `after` the moment at which it takes effect.
fn replicated(requests: &[Request]) -> Register {
    let mut log: Vec<String> = Vec::new();
    let mut heard = [0_usize; 3];
    let mut register = Register::default();
    for (at, request) in requests.iter().enumerate() {
        let now = 10 + at as Micros * 3;
        let begin_us = now - request.before;
        let end_us = now + request.after;
        let node = request.node;
        if request.is_write {
            let value = format!("v{at}");
            log.push(value.clone());
            // The node that acknowledges a write knows it.
            heard[node] = if request.loses_answer { heard[node] } else { log.len() };
            let end_us = (!request.loses_answer).then_some(end_us);
            register.writes.push(Write { node, begin_us, end_us, value });
        } else {
            heard[node] = (heard[node] + request.hears_of).min(log.len());
            // A node looks names up that it does not know.
            if heard[node] == 0 {
                heard[node] = log.len();
            }
            let value = heard[node].checked_sub(1).map(|last| log[last].clone());
            register.reads.push(Read { reader: Reader::Node(node), begin_us, end_us, value });
        }
    }
    let end = 100 + requests.len() as Micros * 3;
    register.reads.push(Read {
        reader: Reader::Healed,
        begin_us: end,
        end_us: end + 1,
        value: log.last().cloned(),
    });
    register
}

proptest! {
    #[test]
    fn replicated_register_has_no_violations(requests in vec(request(), 0..60)) {
        let register = replicated(&requests);
        let violations = register.check();
        prop_assert!(violations.is_empty(), "{violations:?}\n{register:?}");
    }

    /// A cluster that forgets its last acknowledged write is found, unless the write before may take
    /// effect later.
    #[test]
    fn lost_write_is_found(requests in vec(request(), 0..60)) {
        let mut register = replicated(&requests);
        // Times of a sequential history.
        for write in &mut register.writes {
            write.end_us = Some(write.begin_us + 1);
        }
        register.reads.retain(|read| read.reader == Reader::Healed);
        let mut writes = register.writes.clone();
        writes.sort_by_key(|write| write.begin_us);
        prop_assume!(writes.len() >= 2);
        let [.., before, last] = &writes[..] else { unreachable!() };
        prop_assume!(before.end_us < Some(last.begin_us));
        register.reads[0].value = Some(before.value.clone());
        prop_assert_eq!(register.check().len(), 1);
    }
}
