-- Posts the file WEIR_BENCH_BODY, or sends GET requests without it, and prints the measurements as a
-- line of JSON. WEIR_BENCH_HEADER is an optional extra header, as `name: value`.
local path = os.getenv("WEIR_BENCH_BODY")
if path then
  local file = assert(io.open(path, "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  wrk.headers["content-type"] = "application/octet-stream"
  file:close()
end

local header = os.getenv("WEIR_BENCH_HEADER")
if header then
  local name, value = header:match("^([^:]+): (.*)$")
  wrk.headers[name] = value
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests":%d,"duration_us":%d,"p50_us":%d,"p99_us":%d,"refused":%d,"broken":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
