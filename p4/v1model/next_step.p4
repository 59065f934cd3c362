// SPDX-License-Identifier: Apache-2.0
// The verdict decides about the packet: it is dropped, or it becomes the result, or our contribution to the parent.
#ifndef P4_V1MODEL_NEXT_STEP_P4_
#define P4_V1MODEL_NEXT_STEP_P4_

#include "../addressing.p4"
#include "metadata.p4"

control NextStep(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    bool sender_needs;  // the lanes of the result
    bool one_needs;     // of the workers

    action drop_it() { mark_to_drop(standard); }

    action result_to_workers() {
        make_result(hdr);
        standard.mcast_grp = meta.job.group;
        meta.to_workers = true;
    }
    action result_to_sender() {
        make_result(hdr);
        address_to(hdr, hdr.ethernet.src_mac, hdr.ipv4.src_ip, hdr.udp.src_port);
        standard.egress_spec = standard.ingress_port;
    }
    action bare_result_to_sender() {
        leave_out_lanes(hdr);
        result_to_sender();
    }
    action sum_to_parent() {
        hdr.passing.job = meta.parent.job;
        hdr.passing.epoch = meta.parent.epoch;
        hdr.passing.worker = meta.parent.worker;
        hdr.passing.slot = hdr.passing.slot - meta.job.slot_first + meta.parent.slot_first;
        address_to(hdr, meta.parent.mac, meta.parent.ip, meta.parent.udp_port);
        standard.egress_spec = meta.parent.port;
    }
    action unneeded_sum_to_parent() {
        hdr.passing.flags = hdr.passing.flags | NO_RESULT;
        sum_to_parent();
    }

    table next_step {
        key = {
            meta.verdict: exact;
            sender_needs: ternary;
            one_needs: ternary;
        }
        actions = {
            drop_it;
            result_to_workers;
            result_to_sender;
            bare_result_to_sender;
            sum_to_parent;
            unneeded_sum_to_parent;
        }
        const entries = {
            (verdict_t.COMPLETE, _, _): result_to_workers();
            (verdict_t.ANSWERED, _, _): result_to_workers();
            (verdict_t.RESEND, true, _): result_to_sender();
            (verdict_t.RESEND, false, _): bare_result_to_sender();
            (verdict_t.FORWARDED, _, true): sum_to_parent();
            (verdict_t.FORWARDED, _, false): unneeded_sum_to_parent();
            (verdict_t.FORWARDED_AGAIN, _, true): sum_to_parent();
            (verdict_t.FORWARDED_AGAIN, _, false): unneeded_sum_to_parent();
        }
        const default_action = drop_it;
    }

    apply {
        if (hdr.lanes.isValid()) {
            hdr.udp.udp_bytes = UDP_BYTES;
            hdr.ipv4.total_bytes = IPV4_BYTES;
        } else {
            hdr.passing.flags = hdr.passing.flags | BARE;
            hdr.udp.udp_bytes = BARE_UDP_BYTES;
            hdr.ipv4.total_bytes = BARE_IPV4_BYTES;
        }
        sender_needs = meta.no_result & meta.worker_bit == 0;
        one_needs = meta.no_result != meta.job.workers;
        next_step.apply();
    }
}

#endif  // P4_V1MODEL_NEXT_STEP_P4_
