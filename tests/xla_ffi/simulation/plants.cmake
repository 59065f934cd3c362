# Variants of _simulation with a bug each, which the simulator must find (tests/simulation/plants.py). They are made of
# copies of the sources, so that these have no switches; a pattern that a source no longer has is an error.

# In the copy of xla_ffi/`file`, `pattern` (which it has once) becomes `replacement`. What follows: the sources that are
# compiled anew, if not that file alone.
function(add_plant name file pattern replacement)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/plants/${name})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${file})
  file(READ ${file} text)
  string(FIND "${text}" "${pattern}" first)
  string(FIND "${text}" "${pattern}" last REVERSE)
  if(first EQUAL -1 OR NOT first EQUAL last)
    message(FATAL_ERROR "plant ${name}: ${file} has this not exactly once: ${pattern}")
  endif()
  string(REPLACE "${pattern}" "${replacement}" text "${text}")
  file(CONFIGURE OUTPUT ${folder}/${file} CONTENT "${text}" @ONLY)
  set(sources ${ARGN})
  if(NOT sources)
    set(sources ${folder}/${file})
  endif()
  # Symbols of these sources come before those of the libraries, which then aren't asked for them.
  add_library(plant_${name} MODULE ${sources} $<TARGET_OBJECTS:_simulation>)
  target_include_directories(plant_${name} BEFORE PRIVATE ${folder})
  get_target_property(libraries _simulation LINK_LIBRARIES)
  target_link_libraries(plant_${name} PRIVATE ${libraries})
  get_target_property(suffix _simulation SUFFIX)
  set_target_properties(plant_${name} PROPERTIES PREFIX "" SUFFIX ${suffix} OUTPUT_NAME _simulation
    LIBRARY_OUTPUT_DIRECTORY ${folder})
endfunction()

add_plant(one_bit_instead_of_the_sequence switch/slot_pool.cc
  "if (held.empty || wire::SequenceBefore(held.sequence, header.sequence)) {"
  "if (held.empty || header.sequence != held.sequence) {")
add_plant(no_check_of_the_epoch switch/slot_pool.cc
  "if (header.epoch != job.epoch) return drop(Verdict::kForeignEpoch);"
  "")
add_plant(a_result_before_all_bits_are_set switch/slot_pool.cc
  "if (held.bitmap != all) return drop(Verdict::kAdded);"
  "if (std::popcount(held.bitmap) + 1 < std::popcount(all)) return drop(Verdict::kAdded);")
add_plant(a_contribution_counts_twice switch/slot_pool.cc
  "} else if ((held.bitmap & BitOf(header.worker)) != 0) {"
  "} else if ((held.bitmap & BitOf(header.worker)) != 0 && held.bitmap == all) {")
add_plant(a_resend_from_the_other_version switch/slot_pool.cc
  "if (held.complete) return send(Verdict::kResend, SendTo::kWorker);"
  "if (held.complete) {
      const Version& other = of_job.At(header.slot - job.slot_first, 1 - header.version);
      return Action{.verdict = Verdict::kResend, .to = SendTo::kWorker, .job = job.job, .worker = header.worker,
                    .packet = other.Packet()};
    }")
add_plant(a_stale_result_of_the_parent_counts switch/slot_pool.cc
  "if (!held.Holds(header) || held.bitmap != all) return drop(Verdict::kStale);"
  "if (held.empty || held.element_count != header.element_count) return drop(Verdict::kStale);")
# The window's end is inline, so its callers are compiled anew.
add_plant(a_window_one_too_wide host/window/slot_window.h
  "const uint64_t end = low_ + sharding_.window();"
  "const uint64_t end = low_ + sharding_.window() + 1;"
  host/window/slot_window.cc host/all_reduce.cc)
add_plant(elements_are_sent_before_they_come host/order/order_log.cc
  "if (!placed.sum->IsReady(segment)) return false;"
  "")
add_plant(no_check_of_the_source switch/slot_pool.cc
  "if (source != job.addresses[header.worker]) return drop(Verdict::kForeignSource);"
  "(void)source;")
add_plant(no_check_of_tags_at_the_switch switch/slot_pool.cc
  "return header.tagged && key->Fits(packet, wire::PositionNear(completed, header.sequence));"
  "return header.tagged && !packet.empty();")
add_plant(the_switch_forgets_the_upper_half_of_positions switch/slot_pool.cc
  "return header.tagged && key->Fits(packet, wire::PositionNear(completed, header.sequence));"
  "return header.tagged && key->Fits(packet, header.sequence);")
add_plant(no_check_of_tags_at_the_host host/packets/chunk_packets.cc
  "return !keys || keys->result.Fits(packet, chunk.position);"
  "return !keys || !packet.empty();")
add_plant(sums_are_not_checked host/packets/chunk_packets.cc
  "return !chunk.is_checked || check_->Holds(ToCheck(chunk), flags, chunk.data_lanes, lanes);"
  "return !chunk.is_checked || flags != 0 || lanes != nullptr;")
add_plant(masks_come_again host/packets/lane_masks.cc
  "{.high = position,"
  "{.high = position % 64,")
add_plant(a_result_goes_to_another_worker switch/switch_core.cc
  "some_workers_.push_back(workers[worker]);"
  "some_workers_.push_back(workers[workers.size() - 1 - worker]);")
add_plant(a_result_counts_for_the_first_shard host/rank_core.cc
  "const bool awaited = sums_.OnPacket(shard, packet, now_us);"
  "const bool awaited = sums_.OnPacket(0, packet, now_us);")
add_plant(a_segment_goes_to_the_sum_that_was_issued_last host/sums/sums_in_flight.cc
  "return found == named_.end() ? nullptr : found->second->get();"
  "return found != named_.end() ? found->second->get() : sums_.empty() ? nullptr : sums_.back().get();")
add_plant(the_first_lanes_behind_a_contribution_without_any_are_lost switch/held_chunk.h
  "if (bare) {
      Take(of, packet_lanes);"
  "if (bare) {"
  switch/slot_pool.cc)
add_plant(results_are_left_out_for_whom_the_last_one_was switch/slot_pool.cc
  "held.no_result = 0;"
  "")
add_plant(a_host_forgets_the_lanes_that_it_kept host/packets/chunk_packets.cc
  "if (adds_own) {"
  "if (adds_own && header.bare()) {")
# Windows are inline in SlotWindow's members, and in their callers.
add_plant(loss_closes_the_window host/window/congestion_window.h
  "regained_ = chunks_ = std::max({chunks_ * kDecrease, busy, 1.0});"
  "regained_ = chunks_ = 0;"
  host/window/slot_window.cc host/all_reduce.cc)
