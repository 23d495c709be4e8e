-- The script of wrk, after a head with objects, shares and hosts (load.rs).
-- Each thread of wrk has its own interpreter; setup and done run in another.

local threads = {}
function setup(thread)
  threads[#threads + 1] = thread
  thread:set("number", #threads)
  if #hosts > 0 then
    thread.addr = wrk.lookup(hosts[#threads], port)[1]
  end
end

local gets, puts, offsets, pool = {}, {}, {}, nil
written = 0
function init(args)
  math.randomseed(number)
  for _, object in ipairs(objects) do
    if #hosts == 0 or object[1] == number then
      gets[#gets + 1] = wrk.format("GET", "/" .. bucket .. "/" .. object[2])
      offsets[#offsets + 1] = object[3]
      puts[#puts + 1] = object[4]
    end
  end
  if writes > 0 then
    local file = assert(io.open(pool_file, "rb"))
    pool = file:read("*a")
    file:close()
  end
end

local function pick()
  if #shares == 0 then
    return math.random(#gets)
  end
  local share, low, high = math.random(), 1, #shares
  while low < high do
    local middle = math.floor((low + high) / 2)
    if share < shares[middle] then high = middle else low = middle + 1 end
  end
  return low
end

function request()
  local n = pick()
  if writes > 0 and math.random() < writes then
    written = written + 1
    return puts[n] .. pool:sub(offsets[n] + 1, offsets[n] + bytes)
  end
  return gets[n]
end

function done(summary, latency, requests)
  local e, all = summary.errors, 0
  for _, thread in ipairs(threads) do
    all = all + thread:get("written")
  end
  io.write(string.format("RESULT %d %d %d %d %d %f %f %f\n", summary.requests, summary.bytes, all,
    summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99)))
end
