# What bash runs for each command of a shell (shell.py): take the state over, run the command, write the state down.
# Descriptor 251 has the state (four parts) and the command, each ended by a zero byte; the new state goes to 250.
{
  IFS= read -r -d '' -u 251 __shell_script
  IFS= read -r -d '' -u 251 __shell_options
  IFS= read -r -d '' -u 251 __shell_cwd
  IFS= read -r -d '' -u 251 __shell_status
  IFS= read -r -d '' -u 251 __shell_command
  exec 251<&-
}
umask 022
{ eval "$__shell_script"; } 2>/dev/null
if ! { builtin cd -- "$__shell_cwd"; } 2>/dev/null; then
  builtin printf 'bash: the working directory %s is not there any more\n' "$__shell_cwd" >&2
  { builtin cd /work || builtin cd /; } 2>/dev/null
fi
__shell_save() {
  builtin set +euxfC
  builtin trap - DEBUG ERR RETURN
  builtin shopt -u nocasematch
  builtin unset -f __shell_save __shell_return
  {
    builtin local __shell_letter __shell_name
    builtin local -a __shell_names
    for __shell_letter in _ {a..z} {A..Z}; do
      builtin eval "__shell_names=(\"\${!$__shell_letter@}\")"
      for __shell_name in "${__shell_names[@]}"; do
        case $__shell_name in
          __shell_* | _ | BASH | BASH_* | BASHOPTS | BASHPID | COMP_WORDBREAKS | DIRSTACK | EPOCHREALTIME | \
            EPOCHSECONDS | EUID | FUNCNAME | GROUPS | HISTCMD | LINENO | OPTARG | OPTERR | OPTIND | PIPESTATUS | PPID | \
            PWD | RANDOM | SECONDS | SHELLOPTS | SHLVL | SRANDOM | UID | \
            GIT_AUTHOR_DATE | GIT_COMMITTER_DATE | SOURCE_DATE_EPOCH) ;;
          *) builtin declare -p -- "$__shell_name" ;;
        esac
      done
    done
    for __shell_name in HOME LANG PATH TERM TMPDIR TZ USER; do
      [[ -v $__shell_name ]] || builtin printf 'unset %s\n' "$__shell_name"
    done
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
    builtin shopt -p
    builtin umask -p
    builtin printf '\0%s\0%s\0END\0' "$1" "$PWD"
  } >&250
}
__shell_return() { builtin return "$1"; }
trap '{ __shell_save "$SHELLOPTS"; } 2>/dev/null' EXIT
RANDOM=$SOURCE_DATE_EPOCH
__shell_return "$__shell_status"
eval "$__shell_options$__shell_command"
{ __shell_status=$?; __shell_save "$SHELLOPTS"; } 2>/dev/null
exit "$__shell_status"
